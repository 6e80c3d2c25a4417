package consumer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// fakeLane answers rows after a random time. What it knows outlives terms and replicas, as what a provider knows does.
type fakeLane struct {
	low, high time.Duration

	mu     sync.Mutex
	rows   map[uint64]time.Time // when its answer is there
	kept   map[uint64]bool
	bought int // rows that came in
}

// laneOf is the part of a replica in a lane.
type laneOf struct {
	*fakeLane

	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newFakeLane(low, high time.Duration) *fakeLane {
	return &fakeLane{low: low, high: high, rows: make(map[uint64]time.Time), kept: make(map[uint64]bool)}
}

func (l *laneOf) Open(ctx context.Context, term consumer.LaneTerm) error {
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.done.Go(func() {
		sent := make(map[uint64]bool)
		for ctx.Err() == nil {
			l.mu.Lock()
			for seq, at := range l.rows {
				if !sent[seq] && !l.kept[seq] && time.Now().After(at) && len(sent) < 1_000_000 {
					sent[seq] = true
					term.Recall(seq, "answer")
				}
			}
			l.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return nil
}

func (l *laneOf) Holds(row *consumer.Row) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, is := l.rows[row.Seq]
	return is && !l.kept[row.Seq]
}

func (l *laneOf) Kept(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept[seq] = true
}

func (l *laneOf) Stop() {}

func (l *laneOf) Close() {
	if l.cancel != nil {
		l.cancel()
	}
	l.done.Wait()
}

func (l *fakeLane) add(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, is := l.rows[seq]; !is {
		l.rows[seq] = time.Now().Add(l.low + rand.N(l.high-l.low+1))
		l.bought++
	}
}

// laneExecutor puts rows into the lane, but for those that live says.
type laneExecutor struct {
	*sleeper

	lane *fakeLane
	live func(seq uint64) bool
}

func (e *laneExecutor) Start(row *consumer.Row) {
	switch {
	case row.Kept != nil || e.live(row.Seq):
		e.sleeper.Start(row)
	case row.Errand == nil:
		e.lane.add(row.Seq)
		row.Reply(consumer.Reply{Parked: true})
	default:
		row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallSuccess})
		row.Reply(consumer.Reply{
			Body: append([]byte("done "), row.Body...), RequestHash: requestHash(row),
			Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
		})
	}
}

func (b *testbed) startLane(run string, order streams.Order, lane *fakeLane, live func(uint64) bool) *replica {
	b.t.Helper()
	exec := &laneExecutor{sleeper: &sleeper{low: time.Millisecond, high: 3 * time.Second, over: b.t.Context().Done()}, lane: lane, live: live}
	cfg := b.config(run, exec)
	cfg.Order, cfg.WindowRows, cfg.LaneRows, cfg.Lane = order, 16, 500, &laneOf{fakeLane: lane}
	if order == streams.OrderKey {
		cfg.OrderKey, cfg.Key = "field.n", func(row *consumer.Row) string { return string(rune('a' + row.Seq%5)) }
	}
	return b.startWith(cfg)
}

// Rows that a lane answers within hours, many times the window, and live ones between them come out in order, each once
// and bought once, whoever owns the partition.
func TestParkedRowsComeOutInOrder(t *testing.T) {
	rows, takes := scaled().laneRows, scaled().laneTime
	for _, order := range everyOrder {
		for name, disturb := range map[string]func(b *testbed, r *replica, start func(run string) *replica) *replica{
			"undisturbed": func(_ *testbed, r *replica, _ func(string) *replica) *replica { return r },
			"killed and stopped": func(b *testbed, r *replica, start func(string) *replica) *replica {
				for i := range 12 {
					time.Sleep(rand.N(takes / 12))
					if i%3 == 0 {
						r.stop(b.t)
					} else {
						r.kill()
					}
					r = start(fmt.Sprint("run", i))
				}
				return r
			},
			"taken over": func(_ *testbed, r *replica, start func(string) *replica) *replica {
				for i := range 6 {
					next := start(fmt.Sprint("run", i))
					time.Sleep(rand.N(takes / 8))
					r.kill()
					r = next
				}
				return r
			},
		} {
			runOnTestbed(t, fmt.Sprint(order, "/", name), func(t *testing.T, b *testbed) {
				b.load(rows)
				lane := newFakeLane(time.Minute, takes)
				live := func(seq uint64) bool { return seq%4 == 0 }
				start := func(run string) *replica { return b.startLane(run, order, lane, live) }
				r := disturb(b, start("run"), start)
				r.stopAfter(b, rows)
				if order == streams.OrderStream {
					b.check(rows)
				} else if got := b.results(); got != rows {
					t.Errorf("%d results, want %d", got, rows)
				}
				if want := rows - rows/4; lane.bought != want {
					t.Errorf("%d rows were bought, want %d", lane.bought, want)
				}
				if info := b.durable(); info.NumAckPending > 0 {
					t.Errorf("%d rows are not acked", info.NumAckPending)
				}
			})
		}
	}
}

// What a parked row needs fails for a while, or for good: the journal is full, the server restarts, the row is deleted.
func TestParkedRowsSurviveFaults(t *testing.T) {
	rows, takes := scaled().laneRows/2, scaled().laneTime
	for name, c := range map[string]struct {
		disturb func(b *testbed)
		gone    int
	}{
		"the journal is full": {disturb: func(b *testbed) {
			b.alter("JOURNAL", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 10, jetstream.DiscardNew })
		}},
		"the server restarts": {disturb: func(b *testbed) {
			for range 3 {
				time.Sleep(takes / 24)
				b.stopServer()
				time.Sleep(20 * time.Second)
				b.startServer()
			}
		}},
		"a row is deleted": {gone: 1, disturb: func(b *testbed) {
			time.Sleep(takes / 24)
			s := b.stream("ROWS")
			stagetest.Must(b.t, s.DeleteMsg(b.t.Context(), uint64(rows-5)))
		}},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(rows)
			lane := newFakeLane(takes/12, takes*3/4)
			r := b.startLane("run", streams.OrderStream, lane, func(seq uint64) bool { return seq%4 == 0 })
			c.disturb(b)
			r.stopAfter(b, rows-c.gone)
			if c.gone == 0 {
				b.check(rows)
			}
			if want := rows - rows/4; lane.bought != want {
				t.Errorf("%d rows were bought, want %d", lane.bought, want)
			}
		})
	}
}

// The batch of an earlier term has its answers while their rows are set aside, behind a key whose rows wait. The answers
// are taken once the rows have come back: to buy them again would cost twice.
func TestTheAnswerToARowSetAsideIsNotLost(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		const rows, live = 24, 12
		b.load(rows)
		lane := newFakeLane(time.Minute, time.Minute)
		for seq := uint64(live + 1); seq <= rows; seq++ {
			lane.add(seq)
		}
		exec := &laneExecutor{sleeper: hotExecutor(1), lane: lane, live: func(seq uint64) bool { return seq <= live }}
		exec.over = t.Context().Done()
		cfg := b.config("run", exec)
		cfg.Order, cfg.WindowRows, cfg.LaneRows, cfg.Lane = streams.OrderKey, 16, 500, &laneOf{fakeLane: lane}
		cfg.OrderKey, cfg.Key = "field.n", func(*consumer.Row) string { return "hot" }
		r := b.startWith(cfg)
		time.Sleep(2 * time.Minute)
		if st := r.Status(); st.SetAside == 0 || st.Parked > 0 {
			t.Fatalf("%d rows are set aside, %d parked, want some and none", st.SetAside, st.Parked)
		}
		b.finish(r, rows)
		exec.mu.Lock()
		defer exec.mu.Unlock()
		for seq := range exec.calls {
			if seq > live {
				t.Errorf("row %d was called beside its batch", seq)
			}
		}
	})
}
