package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// simReplica is a place where processes of the stage run, one after the other.
type simReplica struct {
	*life
	s      *sim
	id     int
	number int // of the process
	alive  bool
	killed bool      // the last one did not end by itself
	away   time.Time // no process starts here before
	steps  armed
}

func (r *simReplica) nextName() string {
	r.number++
	return "r" + strconv.Itoa(r.id) + "-" + strconv.Itoa(r.number)
}

// manners are what may happen to a process at a step.
var manners = []string{"crash", "torn crash", "deaf crash", "drop", "deaf drop", "sleep", "stop", "stop twice"}

// armed is what will happen to the processes of a place at a step.
type armed struct {
	mu     sync.Mutex
	step   string
	after  int // times that it passes unharmed before
	manner string
	lasts  time.Duration
}

func (a *armed) set(step, manner string, after int, lasts time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.step, a.manner, a.after, a.lasts = step, manner, after, lasts
}

// strikes reports whether it happens now.
func (a *armed) strikes(step string) (manner string, lasts time.Duration, now bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.step != step {
		return "", 0, false
	}
	if a.after--; a.after >= 0 {
		return "", 0, false
	}
	a.step = ""
	return a.manner, a.lasts, true
}

func (r *simReplica) arm(step, manner string, after int, lasts time.Duration) {
	r.steps.set(step, manner, after, lasts)
}

func (r *simReplica) disarm() { r.arm("", "", 0, 0) }

// passesMost is more passes than a term makes at one instant, unless it goes round for
// ever: then virtual time stands still.
const passesMost = 100_000

// restless ends the test where a term turns without rest.
func (l *life) restless(partition int) {
	if now := time.Now(); l.turned[partition].at.Equal(now) {
		l.turned[partition].times++
	} else {
		l.turned[partition] = turned{now, 1}
	}
	if l.turned[partition].times > passesMost {
		panic(fmt.Sprintf("partition %d has turned %d times at one instant, %v", partition, passesMost, time.Since(l.s.began)))
	}
}

// turned is how often a term has turned since an instant at which time has stood still.
type turned struct {
	at    time.Time
	times int
}

// step is called at each step of the protocol, by two goroutines for each partition. A process that is asleep stays where
// it is.
func (l *life) step(partition int, step string, steps *armed) {
	l.s.mu.Lock()
	switch step {
	case "pass":
		l.restless(partition)
	case "drained":
		l.drained[partition] = append(l.drained[partition], time.Now())
		l.handingOver[partition] = true
	case "handing over", "claiming":
		l.handingOver[partition] = false
	}
	l.s.mu.Unlock()
	if manner, lasts, now := steps.strikes(step); now {
		l.s.note(manner + " at " + step)
		l.befall(manner, lasts)
	}
	l.link.awake()
}

func (l *life) befall(manner string, lasts time.Duration) {
	const deafFor = 30 * time.Millisecond
	switch manner {
	case "crash":
		l.trouble(forever)
		l.s.disturb(0)
		l.link.die()
	case "torn crash": // in the middle of a batch, or of a line
		l.trouble(forever)
		l.s.disturb(deafFor)
		l.link.set(func() { l.link.tear = 1 + int(lasts.Milliseconds()) })
		time.AfterFunc(deafFor, l.link.die)
	case "deaf crash": // the server does what was requested, and its answer is lost
		l.trouble(forever)
		l.s.disturb(deafFor)
		l.link.set(func() { l.link.deaf = true })
		time.AfterFunc(deafFor, l.link.die)
	case "drop":
		l.drop()
	case "deaf drop":
		l.trouble(afterDrop)
		l.s.disturb(simRequest)
		l.link.set(func() { l.link.deaf = true })
		time.AfterFunc(deafFor, func() {
			l.link.drop()
			l.link.set(func() { l.link.deaf = false })
		})
	case "sleep":
		l.sleep(lasts)
	case "stop":
		l.stop(0)
	case "stop twice":
		l.stop(lasts / 4)
	}
}

// life is one process from its start to its end. It serves all partitions.
type life struct {
	s            *sim
	name         string
	link         *link
	exec         *simExecutor
	order        streams.Order
	refusing     bool
	journalAfter time.Duration
	consumers    []*consumer.Consumer

	nc                         *nats.Conn
	cancelSoft, cancelHard     context.CancelFunc
	stopRecorder, cancelSpread context.CancelFunc
	// ended is closed when nothing of it runs any more.
	ended chan struct{}

	// Guarded by sim.mu.
	troubled    []span        // when it was cut off, asleep or dead
	sleeps      []span        // when it was asleep
	drained     [][]time.Time // by partition, when it had kept what it leaves to the next one
	handingOver []bool        // by partition: since then it has done nothing else
	turned      []turned      // by partition
	stopping    time.Time     // when it was told to stop; zero: it was not
	hardSince   time.Time     // and at once
}

func (l *life) trouble(lasts time.Duration) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.troubled = append(l.troubled, span{time.Now(), time.Now().Add(lasts)})
}

// sleep suspends the process, in which a rival may take over.
func (l *life) sleep(lasts time.Duration) {
	l.trouble(lasts + time.Second)
	l.s.disturb(0)
	l.s.mu.Lock()
	l.sleeps = append(l.sleeps, span{time.Now(), time.Now().Add(lasts)})
	l.s.mu.Unlock()
	l.link.sleep(lasts)
	time.AfterFunc(lasts, func() { l.s.disturb(0) })
}

// afterDrop is for how long a process whose connection broke may own nothing, and so keep nothing: its pin lives for a
// second, and then it claims the partition again.
const afterDrop = 2 * time.Second

// drop breaks the connection. A request that was under way gets no answer.
func (l *life) drop() {
	l.trouble(afterDrop)
	l.s.disturb(simRequest)
	l.link.drop()
}

// stop begins a soft stop, and stops at once after a while; 0: it does not.
func (l *life) stop(hardAfter time.Duration) {
	l.s.mu.Lock()
	first := l.stopping.IsZero()
	if first {
		l.stopping = time.Now()
	}
	l.s.mu.Unlock()
	if first {
		l.s.disturb(0)
		l.cancelSoft()
		l.exec.drain()
	}
	if hardAfter > 0 {
		time.AfterFunc(hardAfter, l.stopNow)
	}
}

func (l *life) stopNow() {
	l.s.mu.Lock()
	if l.hardSince.IsZero() {
		l.hardSince = time.Now()
		l.troubled = append(l.troubled, span{l.hardSince, l.hardSince.Add(forever)}) // it keeps nothing from now on
	}
	l.s.mu.Unlock()
	l.cancelHard()
}

// kill ends it as a crash would: nothing more of it reaches the server.
func (l *life) kill() {
	l.link.die()
	l.nc.Close()
	l.exec.die()
	l.cancelHard()
	l.cancelSoft()
	l.stopRecorder() // for those that wait for room in it
	<-l.ended
}

// running reports whether it lives, whatever else.
func (l *life) running() bool { return !l.link.isDead() && !isClosed(l.ended) }

// simCall is one call, paid for.
type simCall struct {
	of              simElement
	number          int
	partition       int
	by              *life
	owner           string
	begun, answered time.Time // not answered: the process died
}

func (l *life) call(j simJob) *simCall {
	c := &simCall{of: j.element(), partition: j.row.Partition, by: l, owner: j.row.Owner(), begun: time.Now()}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	c.number = len(l.s.calls)
	l.s.calls, l.s.callsFor[c.of] = append(l.s.calls, c), append(l.s.callsFor[c.of], c)
	return c
}

func (l *life) answered(c *simCall) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	c.answered = time.Now()
}

// inboxOf is what the reply subjects of a process begin with, which distinguishes its requests from those of others.
func inboxOf(name string) string { return "_INBOX." + name }

// start starts a process in the place of one that has ended.
func (s *sim) start(r *simReplica) {
	s.t.Helper()
	s.starts++
	most := []time.Duration{time.Millisecond, 10 * time.Millisecond}[s.rng.IntN(2)]
	l := &life{
		s: s, name: r.nextName(), link: newLink(s.InProcessConn, leastLatency+moment(s.rng, most)),
		journalAfter: s.journalAfter(), order: s.order, refusing: s.refusing,
		drained: make([][]time.Time, s.partitions), handingOver: make([]bool, s.partitions), turned: make([]turned, s.partitions), ended: make(chan struct{}),
	}
	if s.old() {
		l.link.version = "2.12.9"
	}
	var err error
	l.nc, err = nats.Connect("", nats.InProcessServer(l.link), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.CustomInboxPrefix(inboxOf(l.name)), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		s.t.Fatal(err)
	}
	l.exec = newSimExecutor(l)
	l.run(&r.steps)
	s.mu.Lock()
	s.lives[l.name] = l
	s.mu.Unlock()
	s.disturb(0)
	r.life, r.alive, r.killed = l, true, false
}

// run starts everything that belongs to a process. As the program does, it ends the consumers, waits for the calls, and
// ends the recorder last.
func (l *life) run(steps *armed) {
	s := l.s
	cfg := s.config(l.name, l.exec)
	cfg.ResultBucket = simBucket
	cfg.WindowRows, cfg.JournalAfter, cfg.Create = s.window, l.journalAfter, !s.strict()
	s.configure(&cfg)
	rec := recorder.New(l.nc, recorder.Config{
		Stream: "AUDIT", Subject: "audit", Name: cfg.Name, Logger: cfg.Logger, MaxPending: s.pending,
	})
	cfg.Recorder = rec
	soft, stopSoft := context.WithCancel(s.t.Context())
	hard, stopHard := context.WithCancel(s.t.Context())
	recording, stopRecorder := context.WithCancel(context.WithoutCancel(s.t.Context()))
	spreading, stopSpread := context.WithCancel(context.WithoutCancel(s.t.Context()))
	l.cancelSoft, l.cancelHard, l.stopRecorder, l.cancelSpread = stopSoft, stopHard, stopRecorder, stopSpread
	context.AfterFunc(hard, func() {
		l.exec.die()
		time.AfterFunc(time.Second, rec.Hurry) // as the program does
	})
	var serving, others sync.WaitGroup
	others.Go(func() { _ = rec.Run(recording) })
	if s.partitions > 1 { // as the program does
		cfg.Spread = spread.New(l.nc, spread.Config{Name: cfg.Name, ID: l.name, Partitions: s.partitions, Logger: cfg.Logger})
		others.Go(func() { _ = cfg.Spread.Run(soft, spreading) })
	}
	tender := make([]bool, s.partitions)
	for p, gone := range s.gone {
		tender[p] = gone > 0
	}
	for p := range s.partitions {
		cfg := cfg
		cfg.Partition, cfg.InputSubject = p, s.inputSubject(p)
		c := stagetest.Value(consumer.New(l.nc, consumer.WithHook(cfg, func(step string) { l.step(p, step, steps) })))(s.t)
		l.consumers = append(l.consumers, c)
	}
	for p, c := range l.consumers {
		serving.Go(func() {
			switch err := c.Run(soft, hard); {
			case l.refusing && err != nil && strings.Contains(err.Error(), "when the stage last ran"):
				l.stop(0)
			case hard.Err() != nil || l.link.isDead():
			case err != nil && (tender[p] || s.strict() && !consumer.Started(c)): // it may end at the start
				l.stop(0)
			case soft.Err() == nil:
				s.t.Errorf("%v %s: partition %d has ended by itself: %v", s.clock(), l.name, p, err)
				l.stop(0) // as the program does
			case err != nil:
				s.t.Errorf("%v %s: partition %d: a soft stop ended with %v", s.clock(), l.name, p, err)
			}
		})
	}
	go func() {
		serving.Wait()
		stopSpread()
		l.exec.drain()
		l.exec.working.Wait()
		stopRecorder()
		others.Wait()
		stopSoft()
		stopHard()
		l.nc.Close()
		close(l.ended)
		cfg.Logger.Debug("process ended", slog.String("run", l.name))
	}()
}

// unkept is how many replies wait for the journal where none may be lost but those in flight.
func (l *life) unkept() (n int) {
	for _, c := range l.consumers {
		n += c.Unkept()
	}
	return n
}
