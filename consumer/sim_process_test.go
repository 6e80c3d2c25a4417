package consumer_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
)

// simReplica is a place where processes of the stage run, one after the other.
type simReplica struct {
	*replica
	*life
	s      *sim
	id     int
	number int // of the process
	exec   *simExecutor
	alive  bool
	killed bool // the last one did not end by itself

	mu    sync.Mutex
	armed string // step at which something happens
	after int    // times that it passes unharmed before
	then  string // what happens
	lasts time.Duration
}

func (r *simReplica) nextName() string {
	r.number++
	return "r" + strconv.Itoa(r.id) + "-" + strconv.Itoa(r.number)
}

// manners are what may happen to a process at a step.
var manners = []string{"crash", "torn crash", "deaf crash", "drop", "deaf drop", "sleep"}

func (r *simReplica) arm(step, manner string, after int, lasts time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed, r.then, r.after, r.lasts = step, manner, after, lasts
}

func (r *simReplica) disarm() { r.arm("", "", 0, 0) }

// step is told of each step of the protocol, by two goroutines. A process that is asleep stays where it is.
func (r *simReplica) step(step string) {
	r.mu.Lock()
	strikes := r.armed == step
	if strikes {
		r.after--
		strikes = r.after < 0
	}
	manner, lasts := r.then, r.lasts
	if strikes {
		r.armed = ""
	}
	r.mu.Unlock()
	if step == "drained" {
		r.s.mu.Lock()
		r.handedOver = time.Now()
		r.s.mu.Unlock()
	}
	if strikes {
		r.s.note(manner + " at " + step)
		r.befall(manner, lasts)
	}
	r.link.awake()
}

func (l *life) befall(manner string, lasts time.Duration) {
	const deafFor = 30 * time.Millisecond
	switch manner {
	case "crash":
		l.trouble(forever)
		l.link.die()
	case "torn crash": // in the middle of a batch, or of a line
		l.trouble(forever)
		l.link.set(func() { l.link.tear = 1 + int(lasts.Milliseconds()) })
		time.AfterFunc(deafFor, l.link.die)
	case "deaf crash": // the server does what it was asked for, and nobody hears of it
		l.trouble(forever)
		l.link.set(func() { l.link.deaf = true })
		time.AfterFunc(deafFor, l.link.die)
	case "drop":
		l.trouble(time.Second)
		l.link.drop()
	case "deaf drop":
		l.trouble(time.Second)
		l.link.set(func() { l.link.deaf = true })
		time.AfterFunc(deafFor, func() {
			l.link.drop()
			l.link.set(func() { l.link.deaf = false })
		})
	case "sleep":
		l.sleep(lasts)
	}
}

// life is one process from its start to its end.
type life struct {
	s            *sim
	name         string
	link         *link
	journalAfter time.Duration

	// Guarded by sim.mu.
	troubled   []span    // when it was cut off, asleep or dead
	handedOver time.Time // when it had kept what it leaves to the next one; zero: it did not
}

func (l *life) trouble(lasts time.Duration) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.troubled = append(l.troubled, span{time.Now(), time.Now().Add(lasts)})
}

// sleep suspends the process, in which a rival may take over.
func (l *life) sleep(lasts time.Duration) {
	l.trouble(lasts + time.Second)
	l.link.sleep(lasts)
}

// simCall is one call, paid for.
type simCall struct {
	row             uint64
	by              *life
	owner           string
	begun, answered time.Time // not answered: the process died
}

func (l *life) call(row *consumer.Row) *simCall {
	c := &simCall{row: row.Seq, by: l, owner: row.Owner(), begun: time.Now()}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.calls = append(l.s.calls, c)
	return c
}

func (l *life) answered(c *simCall) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	c.answered = time.Now()
}

// outcome of a row's call is drawn from the seed and the row alone.
type outcome struct {
	latency time.Duration
	failed  bool
}

func (s *sim) outcome(seq uint64) outcome {
	rng := rand.New(rand.NewPCG(s.seed, seq))
	o := outcome{latency: 20*time.Millisecond + moment(rng, 980*time.Millisecond), failed: rng.IntN(20) == 0}
	if !s.brisk && rng.IntN(50) == 0 {
		o.latency = 5*time.Second + moment(rng, 20*time.Second)
	}
	return o
}

// simExecutor is a pool of callers.
type simExecutor struct {
	life     *life
	rows     chan *consumer.Row
	dead     chan struct{}
	die      func()
	draining chan struct{}
	drain    func()
}

func newSimExecutor(l *life) *simExecutor {
	e := &simExecutor{life: l, rows: make(chan *consumer.Row, 4*simWindow)}
	e.dead, e.draining = make(chan struct{}), make(chan struct{})
	e.die = sync.OnceFunc(func() { close(e.dead) })
	e.drain = sync.OnceFunc(func() { close(e.draining) })
	for range simPool {
		go e.work()
	}
	return e
}

func (e *simExecutor) Start(row *consumer.Row) { e.rows <- row }

func (e *simExecutor) work() {
	for {
		select {
		case <-e.dead:
			return
		case row := <-e.rows:
			if !e.life.link.awake() {
				return
			}
			e.answer(row)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (e *simExecutor) answer(row *consumer.Row) {
	hash := requestHash(row)
	if k := row.Kept; k != nil && k.RequestHash == hash {
		reply := k.Reply
		reply.Event.Source = auditlog.SourceJournal
		row.Reply(reply)
		return
	}
	if !row.Wanted() || isClosed(e.draining) {
		row.Reply(consumer.Reply{HandedBack: true})
		return
	}
	c, o := e.life.call(row), e.life.s.outcome(row.Seq)
	var cut <-chan struct{}
	if o.latency > time.Second { // as a row that is to be asked again: a drain does not wait for it
		cut = e.draining
	}
	select {
	case <-e.dead:
		return
	case <-cut:
		row.Reply(consumer.Reply{HandedBack: true})
		return
	case <-time.After(o.latency):
	}
	if !e.life.link.awake() {
		return
	}
	e.life.answered(c)
	row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallSuccess})
	row.Reply(consumer.Reply{
		Body: append([]byte("done "), row.Body...), Failed: o.failed, RequestHash: hash,
		Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
	})
}
