package consumer_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	simWindow = 48
	// simRequest is for how long a process may wait for the answer to a request that got lost with its connection, and a
	// second to begin again.
	simRequest = 6 * time.Second
	forever    = 100 * time.Hour
)

// sim is a few replicas, a server, and the faults that break them.
type sim struct {
	*testbed
	simOrder
	rng        *rand.Rand
	seed       uint64
	partitions int
	pending    int  // events that wait in a recorder at most
	fansOut    bool // rows have elements, with a call for each
	began      time.Time
	total      int // rows to be loaded in all
	replicas   []*simReplica
	starts     int
	heals      []heal
	gone       []int // durables that are deleted until an operator creates them again
	// A call takes a time between fastest and slowest, and one in slowCalls many seconds; 0: none.
	fastest, slowest time.Duration
	slowCalls        int
	journalAfter     func() time.Duration // of the next process
	// retention of the input: where acks delete rows, an ack before the result would lose one.
	retention jetstream.RetentionPolicy
	watcher   *simWatch

	claims [][]simClaim // by partition; filled by check

	mu     sync.Mutex
	loaded int
	rows   [][]uint64     // that are loaded, by partition
	done   map[string]int // faults, by name
	lives  map[string]*life
	calls  []*simCall
	// callsFor are those for each row, or element of one.
	callsFor map[simElement][]*simCall
	acks     []simAck
	resets   []simReset
	// entries are those sent to the journal, and looks are the requests for what it holds.
	entries []simEntry
	looks   []simQuestion
	// A partition may stand still while faults that last are ongoing, and until calm.
	ongoing int
	calm    time.Time
	// troubled are the times when the server or a stream was in trouble.
	troubled []span
}

// heal is the end of a fault that lasts.
type heal struct {
	at time.Time
	do func()
}

// span is a time of trouble, both ends included.
type span struct{ from, to time.Time }

// partitionsOf draws how many a seed has.
func partitionsOf(seed uint64) int { return [...]int{2, 4, 1, 2, 1}[seed%5] }

// newSim makes the streams. The seed decides the retention of the input, and even ones leave the journal and the audit
// alone, so that calls that had to be repeated can be identified.
func newSim(t *testing.T, seed uint64, partitions int, order streams.Order) *sim {
	t.Helper()
	s := &sim{
		testbed: bareWith(t, func(o *server.Options) { o.MaxPayload = simPayload }, nil), retention: jetstream.RetentionPolicy(seed % 3), seed: seed, partitions: partitions,
		rng: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), rows: make([][]uint64, partitions), gone: make([]int, partitions),
		done: make(map[string]int), lives: make(map[string]*life), callsFor: make(map[simElement][]*simCall),
		fansOut: seed%4 >= 2,
	}
	s.fastest, s.slowest, s.slowCalls = 20*time.Millisecond, time.Second, 50
	s.journalAfter = func() time.Duration { return time.Duration(s.rng.IntN(3)) * 50 * time.Millisecond }
	s.pending = 8 + s.rng.IntN(57)
	s.setOrder(order)
	stagetest.Value(s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Retention: s.retention}))(t)
	cfg := stageStreams()
	cfg.ResultBucket = simBucket
	if cfg.Partitions = partitions; partitions > 1 {
		cfg.InputSubject = "rows.{partition}.>"
	}
	stagetest.Must(t, streams.Ensure(t.Context(), s.nc, cfg))
	s.log = slog.New(slog.DiscardHandler)
	if *simLog {
		s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for subject, listen := range map[string]nats.MsgHandler{
		"$JS.ACK.ROWS.>": s.acked, "$JS.API.CONSUMER.RESET.ROWS.*": s.reset, "journal.stage.>": s.journaled, "$JS.API.STREAM.INFO.JOURNAL": s.lookedAt,
	} {
		stagetest.Value(s.nc.Subscribe(subject, listen))(t)
	}
	if s.strict() {
		for p := range partitions {
			s.createDurable(p)
		}
	}
	t.Cleanup(func() { // where the test ended early
		s.unwatch()
		s.heal(time.Now().Add(forever))
		for _, r := range s.replicas {
			if r.alive {
				s.kill(r)
			}
		}
		time.Sleep(5 * time.Second) // for what is still on its way
	})
	return s
}

func (s *sim) inputSubject(partition int) string {
	if s.partitions == 1 {
		return "rows.>"
	}
	return streams.InputFilter("rows.{partition}.>", partition)
}

// createDurable does what an operator does for a stage that must not.
func (s *sim) createDurable(partition int) {
	order := s.order
	if s.mixed {
		order = streams.OrderKey // which serves the others, too
	}
	cfg := streams.DurableConfig{
		Name: "stage", Partition: partition, InputStream: "ROWS", InputSubject: s.inputSubject(partition), ResultStream: "RESULTS",
		WindowRows: s.window, Order: order, OrderSpan: s.span, Create: true,
	}
	if _, err := streams.OpenDurable(s.t.Context(), s.nc, cfg); err != nil {
		s.t.Errorf("create the durable: %v", err)
	}
}

func (s *sim) clock() time.Duration { return time.Since(s.began).Round(time.Millisecond) }

func (s *sim) count(fault string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done[fault]
}

func (s *sim) note(fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[fault]++
	s.log.Info("fault", slog.String("name", fault), slog.Duration("at", time.Since(s.began)))
}

// disturb allows a partition to stand still for a while.
func (s *sim) disturb(lasts time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(lasts); until.After(s.calm) {
		s.calm = until
	}
}

// loadMore publishes rows to partitions at random.
func (s *sim) loadMore(n int) {
	s.t.Helper()
	for range n {
		s.loadInto(s.rng.IntN(s.partitions))
	}
}

func (s *sim) loadInto(partition int) {
	s.t.Helper()
	msg := &nats.Msg{Subject: fmt.Sprintf("rows.%d.a", partition), Data: fmt.Appendf(nil, `{"n":%d}`, s.loaded)}
	key, until := "", time.Time{}
	if s.mixed {
		if key, until = s.drawKey(), s.drawRefusal(); key != "" {
			msg.Header = nats.Header{simKeyHeader: {key}}
		}
	}
	ack := stagetest.Value(s.js.PublishMsg(s.t.Context(), msg))(s.t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded++
	s.rows[partition] = append(s.rows[partition], ack.Sequence)
	s.keys[ack.Sequence] = streams.KeyHeader(key)
	if !until.IsZero() {
		s.refused.Store(ack.Sequence, until)
	}
}

func (s *sim) emitted() (n int) {
	counts := stagetest.Value(s.emittedBy())(s.t)
	for _, count := range counts {
		n += count
	}
	return n
}

// emittedBy is the number of results of each partition.
func (s *sim) emittedBy() ([]int, error) {
	results, err := stagetest.Subjects(s.t.Context(), s.js, "RESULTS", "results.stage.*.rows")
	counts := make([]int, s.partitions)
	for p := range counts {
		counts[p] = results[streams.ResultSubject("results", "stage", p)]
	}
	return counts, err
}

// begin starts two or three replicas, and leaves places for others.
func (s *sim) begin() {
	s.t.Helper()
	places, now := 2+s.rng.IntN(2), 2+s.rng.IntN(2)
	if s.partitions > 1 {
		places++
	}
	for id := range places {
		r := &simReplica{s: s, id: id}
		s.replicas = append(s.replicas, r)
		if id < now {
			s.start(r)
		} else {
			r.away = time.Now().Add(moment(s.rng, 20*time.Second))
		}
	}
	s.await("the durables", func() bool { // an interest stream keeps nothing before
		for p := range s.partitions {
			if _, err := s.js.Consumer(s.t.Context(), "ROWS", streams.DurableName("stage", p)); err != nil {
				return false
			}
		}
		return true
	})
	s.watch()
}

func (s *sim) run() {
	s.t.Helper()
	s.begin()
	s.loadMore(s.total / 2)
	settled := s.partitions == 1
	for s.loaded < s.total || s.emitted() < s.total && s.refusedLess(time.Minute) && time.Since(s.began) < time.Hour {
		time.Sleep(moment(s.rng, 3*time.Second))
		if more := min(s.total-s.loaded, s.rng.IntN(20)); more > 0 {
			s.loadMore(more)
		}
		if !settled && s.loaded > s.total*3/4 {
			settled = true
			s.settle()
			s.settleBeside(rumours[s.rng.IntN(len(rumours))])
			s.settle()
		}
		s.heal(time.Now())
		s.checkBounds()
		s.revive()
		s.fault()
	}
	s.finish()
}

// finish ends all faults, waits for the last row and stops what is alive.
func (s *sim) finish() {
	s.t.Helper()
	s.settle()
	if s.keyed() { // what is refused holds up nothing else
		w := s.newStarve()
		s.await("the rows that wait for none", func() bool { return w.left() == "" })
	}
	time.Sleep(s.longest())
	s.await("all results", func() bool { return s.emitted() >= s.loaded })
	time.Sleep(5 * time.Second)
	for _, r := range s.replicas {
		for p, c := range r.consumers {
			if st := c.Status(); st.Problem != "" {
				s.t.Errorf("%s, partition %d has the problem %q though nothing is wrong any more", r.name, p, st.Problem)
			}
		}
	}
	s.checkShares()
	s.checkBounds()
	for _, r := range s.replicas {
		if s.stopCleanly(r); r.killed {
			s.t.Errorf("%s did not end", r.name)
		}
	}
	s.unwatch()
}

// quieten ends all faults and restarts dead processes.
func (s *sim) quieten() {
	s.t.Helper()
	s.heal(time.Now().Add(forever))
	for _, r := range s.replicas {
		r.disarm()
		r.away = time.Time{}
	}
	time.Sleep(time.Second) // for dying processes to end
	s.await("those who stop", func() bool {
		s.revive()
		for _, r := range s.replicas {
			if r.alive && (!r.running() || !s.well(r.life)) {
				return false
			}
		}
		return true
	})
	s.revive()
}

func (s *sim) well(l *life) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.healthy(l)
}

// heal ends the faults that are due.
func (s *sim) heal(now time.Time) {
	var later []heal
	for _, m := range s.heals {
		if m.at.After(now) {
			later = append(later, m)
		} else {
			m.do()
		}
	}
	s.heals = later
}

// revive restarts dead processes, and buries those that died meanwhile.
func (s *sim) revive() {
	s.t.Helper()
	for _, r := range s.replicas {
		switch {
		case !r.alive && time.Now().Before(r.away):
		case !r.alive:
			s.start(r)
		case r.link.isDead():
			s.bury(r)
		case isClosed(r.ended):
			s.bury(r)
			r.killed = false
		case s.overdue(r.life):
			s.kill(r)
		}
	}
}

// overdue reports whether a stopping process has exceeded its deadline.
func (s *sim) overdue(l *life) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !l.stopping.IsZero() && time.Since(l.stopping) > time.Minute || !l.hardSince.IsZero() && time.Since(l.hardSince) > 10*time.Second
}

// trouble records that all processes are cut off, or their partition is lost, for a while.
func (s *sim) trouble(lasts time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.troubled = append(s.troubled, span{time.Now(), time.Now().Add(lasts)})
}

// kill ends a process at once.
func (s *sim) kill(r *simReplica) {
	s.disturb(0)
	r.link.die()
	s.bury(r)
}

// bury ends what is left of a process that is dead or has ended.
func (s *sim) bury(r *simReplica) {
	r.trouble(forever)
	r.kill()
	r.alive, r.killed = false, true
}

// stopCleanly drains a process. What is armed may kill it on the way.
func (s *sim) stopCleanly(r *simReplica) {
	if !r.alive {
		return
	}
	r.stop(0)
	for range 600 {
		if !r.running() {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	clean := !r.link.isDead() && isClosed(r.ended)
	s.bury(r)
	r.killed = !clean
}

// state is what the replicas report of a partition. sim.mu is held.
func (s *sim) state(partition int) string {
	var b strings.Builder
	for name, l := range s.lives {
		if !l.running() {
			continue
		}
		st := l.consumers[partition].Status()
		fmt.Fprintf(&b, "; %s %s %s window %d buffered %d head %d", name, st.Role, st.Owner, st.Window, st.Buffered, st.Head)
		if !l.stopping.IsZero() {
			fmt.Fprintf(&b, " stopping for %v", time.Since(l.stopping))
		}
		if st.Problem != "" {
			fmt.Fprintf(&b, " problem %q", st.Problem)
		}
	}
	return b.String()
}
