package consumer_test

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	simPool   = 8
	simWindow = 48
)

// sim is a few replicas, a server, and somebody who breaks them.
type sim struct {
	*bench
	rng      *rand.Rand
	seed     uint64
	began    time.Time
	total    int // rows to be loaded in all
	loaded   int
	replicas []*simReplica
	starts   int
	mends    []mend
	brisk    bool // no call takes longer than a second
	// retention of the input: where acks delete rows, an ack before the result would lose one.
	retention jetstream.RetentionPolicy

	claims []simClaim // filled by check

	mu    sync.Mutex
	done  map[string]int // faults, by name
	lives map[string]*life
	calls []*simCall
	acks  []simAck
	// troubled are the times when the server or a stream was not well.
	troubled []span
}

// mend is the end of a fault that lasts.
type mend struct {
	at time.Time
	do func()
}

// span is a time of trouble, both ends included.
type span struct{ from, to time.Time }

// newSim makes the streams. The seed decides the retention of the input, and even ones leave the journal and the audit
// alone, so that it can be told which calls had to be made again.
func newSim(t *testing.T, seed uint64) *sim {
	t.Helper()
	b := bare(t)
	retention := jetstream.RetentionPolicy(seed % 3)
	if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Retention: retention}); err != nil {
		t.Fatal(err)
	}
	ensure(b)
	s := &sim{
		bench: b, retention: retention, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), began: time.Now(),
		done: make(map[string]int), lives: make(map[string]*life),
	}
	b.log = slog.New(slog.DiscardHandler)
	if *simLog {
		b.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if _, err := b.nc.Subscribe("$JS.ACK.ROWS.>", s.acked); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // where the test ended early
		for _, r := range s.replicas {
			if r.alive {
				s.kill(r)
			}
		}
		time.Sleep(5 * time.Second) // for what is still on its way
	})
	return s
}

func (s *sim) count(fault string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done[fault]
}

func (s *sim) note(fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[fault]++
	s.log.Info("fault", slog.String("name", fault))
}

func (s *sim) loadMore(n int) {
	s.t.Helper()
	s.loadFrom(s.loaded, n)
	s.loaded += n
}

func (s *sim) emitted() int { return int(s.stored("RESULTS", "results.stage.0.rows")) }

// begin starts two or three replicas.
func (s *sim) begin() {
	s.t.Helper()
	for id := range 2 + s.rng.IntN(2) {
		r := &simReplica{s: s, id: id}
		s.replicas = append(s.replicas, r)
		s.start(r)
	}
	s.await("the durable", func() bool { // an interest stream keeps nothing before
		_, err := s.js.Consumer(s.t.Context(), "ROWS", "stage-0")
		return err == nil
	})
}

func (s *sim) run() {
	s.t.Helper()
	s.begin()
	s.loadMore(s.total / 2)
	for s.emitted() < s.total && time.Since(s.began) < time.Hour {
		time.Sleep(moment(s.rng, 3*time.Second))
		if more := min(s.total-s.loaded, s.rng.IntN(20)); more > 0 {
			s.loadMore(more)
		}
		s.mend(time.Now())
		s.checkBounds()
		s.revive()
		s.fault()
	}
	s.finish()
}

// finish ends all faults, waits for the last row and stops what is alive.
func (s *sim) finish() {
	s.t.Helper()
	s.mend(time.Now().Add(time.Hour))
	for _, r := range s.replicas {
		r.disarm()
	}
	time.Sleep(time.Second) // for the end of who is dying
	s.revive()
	s.revive() // and starts who was dead
	s.until(s.loaded)
	time.Sleep(30 * time.Second) // the last zombie wakes up and looks around
	owners := 0
	for _, r := range s.replicas {
		st := r.Status()
		if st.Role == consumer.Owner {
			owners++
		}
		if st.Problem != "" {
			s.t.Errorf("%s has the problem %q though nothing is wrong any more", r.name, st.Problem)
		}
	}
	if owners > 1 {
		s.t.Errorf("%d replicas think that they own the partition", owners)
	}
	s.checkBounds()
	for _, r := range s.replicas {
		if s.stopCleanly(r); r.killed {
			s.t.Errorf("%s did not end", r.name)
		}
	}
}

// mend ends the faults whose time has come.
func (s *sim) mend(now time.Time) {
	var later []mend
	for _, m := range s.mends {
		if m.at.After(now) {
			later = append(later, m)
		} else {
			m.do()
		}
	}
	s.mends = later
}

// revive starts the dead, and buries who died meanwhile.
func (s *sim) revive() {
	s.t.Helper()
	for _, r := range s.replicas {
		switch {
		case !r.alive:
			s.start(r)
		case r.link.isDead():
			s.bury(r)
		case isClosed(r.ended):
			s.t.Errorf("%s has ended by itself: %v", r.name, <-r.done)
			s.kill(r)
		}
	}
}

// fault draws one.
func (s *sim) fault() {
	s.t.Helper()
	r := s.replicas[s.rng.IntN(len(s.replicas))]
	switch draw := s.rng.IntN(18); draw {
	case 0, 1, 2, 3, 4, 5:
		after := s.rng.IntN(10)
		step := consumer.Steps[s.rng.IntN(len(consumer.Steps))]
		switch step {
		case "taken", "answered", "kept", "appending", "appended", "acked":
		default:
			after %= 2 // they come once a term or a second
		}
		r.arm(step, manners[s.rng.IntN(len(manners))], after, moment(s.rng, 8*time.Second))
	case 6:
		if r.alive {
			s.note("kill")
			s.kill(r)
		}
	case 7, 8:
		if r.alive && r.link.awake() { // asleep while a rival takes over; then what it had sent arrives late
			s.note("zombie")
			r.sleep(500*time.Millisecond + moment(s.rng, 8*time.Second))
		}
	case 9, 10:
		if r.alive && r.link.awake() {
			s.note("clean stop")
			s.stopCleanly(r)
		}
	case 11:
		s.restartServer(moment(s.rng, 4*time.Second))
	case 12:
		s.note("slow network")
		latency, lasts := moment(s.rng, time.Second), moment(s.rng, 10*time.Second)
		link := r.link
		r.trouble(lasts + 4*time.Second) // mended at the next look, and what is on its way arrives after that
		link.set(func() { link.latency = max(latency, link.usual) })
		s.mends = append(s.mends, mend{time.Now().Add(lasts), func() { link.set(func() { link.latency = link.usual }) }})
	default:
		s.faultOfServer(draw)
	}
}

// faultOfServer is a fault by somebody who has the right to work on streams and consumers.
func (s *sim) faultOfServer(draw int) {
	s.t.Helper()
	switch draw {
	case 13:
		s.note("reset by somebody else")
		seq := uint64(s.rng.IntN(s.loaded))
		if s.retention != jetstream.LimitsPolicy {
			seq = 0 // a later one deletes rows that nobody has taken
		}
		_, _ = s.js.ResetConsumerToSequence(s.t.Context(), "ROWS", "stage-0", seq)
	case 14:
		s.note("unpinned")
		_ = s.stream("ROWS").UnpinConsumer(s.t.Context(), "stage-0", "stage")
	case 15:
		stream := []string{"RESULTS", "AUDIT", "JOURNAL"}[s.rng.IntN(3)]
		if stream != "RESULTS" && s.thrifty() {
			return
		}
		s.note("full " + stream)
		full(stream)(s.bench)
		lasts := moment(s.rng, 15*time.Second)
		s.trouble(lasts + 10*time.Second) // a term that ends meanwhile has no next one, which would keep what is answered
		s.mends = append(s.mends, mend{time.Now().Add(lasts), func() { unlimited(stream)(s.bench) }})
	case 16:
		if s.retention == jetstream.LimitsPolicy { // else its rows would go with it
			s.note("durable deleted")
			s.trouble(3 * time.Second)
			_ = s.js.DeleteConsumer(s.t.Context(), "ROWS", "stage-0")
		}
	case 17:
		if !s.thrifty() {
			s.note("journal purged")
			_ = s.stream("JOURNAL").Purge(s.t.Context())
		}
	}
}

// thrifty says that journal and audit are left alone, so that no call is made again without need.
func (s *sim) thrifty() bool { return s.seed%2 == 0 }

// old says that the server cannot set a consumer back: it is deleted and made anew. So it is with servers before 2.14.
func (s *sim) old() bool { return s.seed%6 == 3 && s.retention == jetstream.LimitsPolicy }

func (s *sim) restartServer(down time.Duration) {
	s.t.Helper()
	s.note("server restart")
	s.trouble(down + 3*time.Second)
	s.stopServer()
	time.Sleep(down)
	s.startServer()
}

// trouble says that all processes are cut off, or their partition is lost, for a while.
func (s *sim) trouble(lasts time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.troubled = append(s.troubled, span{time.Now(), time.Now().Add(lasts)})
}

// kill ends a process at once.
func (s *sim) kill(r *simReplica) {
	r.link.die()
	s.bury(r)
}

// bury ends what is left of a process that is dead.
func (s *sim) bury(r *simReplica) {
	r.trouble(forever)
	r.exec.die()
	r.kill()
	r.alive, r.killed = false, true
}

const forever = 100 * time.Hour

// stopCleanly drains a process. What is armed may kill it on the way.
func (s *sim) stopCleanly(r *simReplica) {
	r.exec.drain()
	r.soft()
	select {
	case <-r.ended:
	case <-time.After(time.Minute):
	}
	select {
	case <-r.ended:
		if err := <-r.done; err != nil {
			s.t.Errorf("%s: %v", r.name, err)
		}
		r.hard()
		r.nc.Close()
		r.exec.die()
		r.link.die()
		r.alive = false
	default:
		s.kill(r)
	}
}

// start starts a process in the place of one that has ended.
func (s *sim) start(r *simReplica) {
	s.t.Helper()
	s.starts++
	most := []time.Duration{time.Millisecond, 10 * time.Millisecond}[s.rng.IntN(2)]
	r.life = &life{
		s: s, name: r.nextName(), link: newLink(s.InProcessConn, leastLatency+moment(s.rng, most)),
		journalAfter: time.Duration(s.rng.IntN(3)) * 50 * time.Millisecond,
	}
	if s.old() {
		r.link.version = "2.12.9"
	}
	s.mu.Lock()
	s.lives[r.name] = r.life
	s.mu.Unlock()
	r.exec = newSimExecutor(r.life)
	nc, err := nats.Connect("", nats.InProcessServer(r.link), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := s.config(r.name, r.exec)
	cfg.WindowRows = simWindow
	cfg.JournalAfter = r.journalAfter
	cfg = consumer.WithHook(cfg, r.step)
	r.replica = s.startOn(nc, cfg)
	r.alive, r.killed = true, false
}
