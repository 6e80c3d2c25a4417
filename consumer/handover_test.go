package consumer_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// queuer is an executor like that of the stage: so many calls at once, the other rows wait in a queue, and Recall hands
// back those of them that are no longer wanted.
type queuer struct {
	latency func() time.Duration
	awake   func() // waits while the process is suspended; nil: it never is
	over    <-chan struct{}

	mu    sync.Mutex
	queue []*consumer.Row
	free  int
	calls int
}

func newQueuer(t *testing.T, calls int, latency func() time.Duration) *queuer {
	t.Helper()
	return &queuer{latency: latency, free: calls, over: t.Context().Done()}
}

func (q *queuer) Start(row *consumer.Row) {
	q.mu.Lock()
	q.queue = append(q.queue, row)
	q.mu.Unlock()
	q.next()
}

func (q *queuer) Recall() {
	var unwanted []*consumer.Row
	q.mu.Lock()
	q.queue = slices.DeleteFunc(q.queue, func(row *consumer.Row) bool {
		if !row.Wanted() {
			unwanted = append(unwanted, row)
			return true
		}
		return false
	})
	q.mu.Unlock()
	for _, row := range unwanted {
		row.Reply(consumer.Reply{HandedBack: true})
	}
}

// next starts the calls that there is room for.
func (q *queuer) next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.free > 0 && len(q.queue) > 0 {
		row := q.queue[0]
		q.queue = q.queue[1:]
		if !row.Wanted() {
			go row.Reply(consumer.Reply{HandedBack: true})
			continue
		}
		q.free--
		q.calls++
		go q.call(row, q.latency())
	}
}

func (q *queuer) call(row *consumer.Row, latency time.Duration) {
	select {
	case <-time.After(latency):
	case <-q.over:
		return
	}
	if q.awake != nil {
		q.awake()
	}
	row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallSuccess})
	row.Reply(consumer.Reply{
		Body: append([]byte("done "), row.Body...), RequestHash: requestHash(row),
		Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
	})
	q.mu.Lock()
	q.free++
	q.mu.Unlock()
	q.next()
}

func (q *queuer) made() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.calls
}

// TestAHandOverThatLosesTheConnectionStallsNothing breaks the connection while partitions are released and their last
// calls are waited for. Rows that were handed back before that belong to nobody and must be taken again.
func TestAHandOverThatLosesTheConnectionStallsNothing(t *testing.T) {
	drop := func(b *testbed, first, _ *crewMate) {
		if err := first.nc.ForceReconnect(); err != nil {
			b.t.Error(err)
		}
	}
	restart := func(down time.Duration) func(b *testbed, first, second *crewMate) {
		return func(b *testbed, _, _ *crewMate) {
			b.stopServer()
			time.Sleep(down)
			b.startServer()
		}
	}
	for name, tt := range map[string]struct {
		breaks func(b *testbed, first, second *crewMate)
		shares []int
	}{
		"the server restarts":               {restart(3 * time.Second), []int{4, 4}},
		"the server is down for long":       {restart(30 * time.Second), []int{4, 4}},
		"the connection drops":              {drop, []int{4, 4}},
		"it drops, and the other is killed": {func(b *testbed, first, second *crewMate) { second.kill(); drop(b, first, second) }, []int{0, 8}},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := partitioned(t)
			const rows, calls = 20, 4 // of each partition
			publish := func(from, to int) {
				for n := from; n < to; n++ {
					for p := range b.partitions {
						stagetest.Value(b.js.Publish(t.Context(), fmt.Sprintf("rows.%d.a", p), []byte(`{"n":`+strconv.Itoa(n)+`}`)))(t)
					}
				}
			}
			publish(0, calls)
			slow := time.Now().Add(3 * time.Second)
			latency := func() time.Duration {
				if time.Now().Before(slow) {
					return 20 * time.Second
				}
				return 10 * time.Millisecond
			}
			first := b.mateWith(b.config("first", newQueuer(t, calls*b.partitions, latency)))
			time.Sleep(time.Second)
			publish(calls, rows-1) // these wait for a slot
			time.Sleep(time.Second)
			second := b.mateWith(b.config("second", newQueuer(t, calls*b.partitions, latency)))
			time.Sleep(1500 * time.Millisecond) // the first has released half of them, and waits for its calls
			tt.breaks(b, first, second)
			time.Sleep(40 * time.Second)
			// Only a row gives an idle partition to the replica that stands by for it:
			//
			//	The second takes a partition over, and the first continues with it and fences the second.
			//	The rows are answered. The second stands by, so the first releases the partition to it.
			publish(rows-1, rows)
			time.Sleep(time.Second)
			for p := range b.partitions {
				if n := b.stored("RESULTS", streams.ResultSubject("results", "stage", p)); n != rows {
					t.Errorf("partition %d: %d of %d results", p, n, rows)
				}
			}
			b.awaitShares(tt.shares, first, second)
			second.kill()
			first.kill()
		})
	}
}

// A partition moves while rows wait for a slot: they are handed back, and the partition is the next owner's once the
// calls in flight have ended.
func TestAHandOverWaitsForTheCallsInFlightOnly(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		const rows, calls = 20, 2
		exec := newQueuer(t, calls, func() time.Duration { return 10 * time.Second })
		first := b.start("first", exec)
		b.load(rows)
		time.Sleep(time.Second)
		next := newQueuer(t, calls, func() time.Duration { return time.Second })
		second := b.start("second", next)
		time.Sleep(time.Second)
		first.StandAside(true)
		time.Sleep(15 * time.Second)
		if got := second.Status().Role; got != consumer.Owner {
			t.Errorf("5 s after the last call has ended the second is %s, want owner", got)
			second.kill()
			first.kill()
			return
		}
		b.until(rows)
		if exec.made() != calls || next.made() != rows-calls {
			t.Errorf("%d and %d calls, want %d and %d", exec.made(), next.made(), calls, rows-calls)
		}
		second.stop(t)
		first.stop(t)
		b.check(rows)
	})
}

// heldHead is a queuer that makes no call for row 1 until it has handed it back once.
type heldHead struct {
	*queuer

	mu       sync.Mutex
	head     *consumer.Row
	recalled bool
}

func (h *heldHead) Start(row *consumer.Row) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if row.Seq == 1 && !h.recalled {
		h.head = row
		return
	}
	h.queuer.Start(row)
}

func (h *heldHead) Recall() {
	h.mu.Lock()
	if h.head != nil && !h.head.Wanted() {
		h.head.Reply(consumer.Reply{HandedBack: true})
		h.head, h.recalled = nil, true
	}
	h.mu.Unlock()
	h.queuer.Recall()
}

// TestAPartitionThatComesBackPaysForNoReplyAgain hands a partition over while calls are in flight, whose replies wait for
// a row that is handed back. The next owner stores nothing. When the partition comes back the replies are in the journal,
// or still in memory where it takes none. The trace of each row ends once.
func TestAPartitionThatComesBackPaysForNoReplyAgain(t *testing.T) {
	const rows = 10
	cases := map[string]struct {
		journal bool
		size    int64 // of the stream of the journal
	}{
		"journal":      {journal: true, size: -1},
		"full journal": {journal: true, size: 1},
		"no journal":   {},
	}
	for name, tt := range cases {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(rows)
			traces := &follower{}
			cfg := b.config("first", &heldHead{queuer: newQueuer(t, rows, func() time.Duration { return 5 * time.Second })})
			cfg.Journal, cfg.Tracer = tt.journal, traces
			first := b.startWith(cfg)
			if tt.size != 0 {
				b.limit("JOURNAL", tt.size)
			}
			time.Sleep(time.Second)
			second := b.start("second", &sleeper{low: time.Hour, high: time.Hour})
			time.Sleep(time.Second)
			first.StandAside(true)
			second.awaitOwner(b)
			second.kill()
			b.until(rows)
			// The executor of this test doesn't look at replies in the journal.
			if got := cfg.Executor.(*heldHead).made(); got != rows && tt.size != -1 {
				t.Errorf("the first has made %d calls for %d rows", got, rows)
			}
			first.stop(t)
			b.check(rows)
			traces.check(t)
		})
	}
}

// ends records how terms end.
type ends struct {
	mu  sync.Mutex
	how []string
}

func (*ends) RowEmitted(int, bool, time.Duration, time.Duration) {}

func (e *ends) TermEnded(_ int, how string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.how = append(e.how, how)
}

// TestAHandOverReadsTheLogFirst has a rival claim the partition at the moment when its owner has drained. The owner
// must leave the consumer alone: the rival takes rows from it.
func TestAHandOverReadsTheLogFirst(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(5)
		var how ends
		var handedOver bool
		cfg := b.config("first", &sleeper{})
		cfg.Observer = &how
		cfg = consumer.WithHook(cfg, func(step string) {
			switch step {
			case "drained":
				claim := &nats.Msg{Subject: streams.ClaimSubject("results", "stage", 0), Header: nats.Header{
					streams.HeaderOwner: {"rival.1"}, streams.HeaderSourceSeq: {"5"},
				}}
				if _, err := b.js.PublishMsg(t.Context(), claim); err != nil {
					t.Error(err)
				}
			case "handing over":
				handedOver = true
			}
		})
		r := b.startWith(cfg)
		b.until(5)
		time.Sleep(time.Second)
		r.stop(t)
		if !slices.Equal(how.how, []string{"fenced"}) || handedOver {
			t.Errorf("terms ended %v, consumer set back: %v; want fenced, and no", how.how, handedOver)
		}
	})
}

// TestWhoOwnsNothingHasNoWindow checks what a former owner reports.
func TestWhoOwnsNothingHasNoWindow(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		cfg := b.config("first", &sleeper{low: time.Minute, high: time.Hour})
		first := b.startWith(cfg)
		time.Sleep(time.Second)
		if s := first.Status(); s.Window != 64 || s.Head == 0 || s.Pending == 0 {
			t.Errorf("the owner reports %+v, want a full window", s)
		}
		second := b.start("second", &sleeper{high: time.Millisecond})
		time.Sleep(time.Second)
		b.await("the second to get the pin", func() bool {
			stagetest.Must(t, b.stream("ROWS").UnpinConsumer(t.Context(), "stage-0", "stage"))
			time.Sleep(time.Second)
			return second.Status().Role == consumer.Owner
		})
		b.until(100)
		time.Sleep(5 * time.Second)
		s := first.Status()
		if s.Role == consumer.Owner || s.Window != 0 || s.Buffered != 0 || s.BufferedBytes != 0 || s.Head != 0 || !s.HeadSince.IsZero() || s.Pending != 0 {
			t.Errorf("a former owner reports %+v", s)
		}
		second.stop(t)
		first.kill()
	})
}

// TestAReplicaThatRunsNeverEndsBecauseOfNATS deletes the durable consumer under an owner and a standby that has never
// owned the partition, neither of which may create one.
func TestAReplicaThatRunsNeverEndsBecauseOfNATS(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		start := func(run string) *replica {
			cfg := b.config(run, &sleeper{})
			cfg.Create = false
			return b.startWith(cfg)
		}
		b.createDurable()
		first := start("first")
		b.load(5)
		b.until(5)
		second := start("second")
		time.Sleep(5 * time.Minute)
		stagetest.Must(t, b.js.DeleteConsumer(t.Context(), "ROWS", "stage-0"))
		time.Sleep(time.Minute)
		for _, r := range []*replica{first, second} {
			select {
			case <-r.ended:
				t.Errorf("a replica ended: %v", <-r.done)
			default:
				if r.Status().Problem == "" {
					t.Error("a replica without its consumer reports no problem")
				}
			}
		}
		b.createDurable()
		b.loadFrom(5, 5)
		second.stopAfter(b, 10)
		first.stop(t)
		b.check(10)
	})
}

// A suspended owner that wakes up has lost its calls in flight: its rival has made them again. It must make no others.
func TestAWokenOwnerMakesNoCallBeforeItHasReadTheLog(t *testing.T) {
	const calls = 8
	for _, asleep := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 20 * time.Second} {
		runOnTestbed(t, asleep.String(), func(t *testing.T, b *testbed) {
			b.load(100)
			l := newLink(b.InProcessConn, leastLatency)
			exec := newQueuer(t, calls, func() time.Duration { return 300 * time.Millisecond })
			exec.awake = func() { l.awake() }
			nc := b.connectBy(l)
			cfg := consumer.WithHook(b.config("first", exec), func(string) { l.awake() })
			first := b.startOn(nc, cfg)
			time.Sleep(2 * time.Second)
			second := b.start("second", &sleeper{low: time.Hour, high: time.Hour})
			time.Sleep(time.Second)
			before := exec.made()
			l.sleep(asleep)
			time.Sleep(asleep)
			woken := exec.made()
			time.Sleep(5 * time.Second)
			switch taken := second.Status().Role == consumer.Owner; {
			case taken && exec.made() > woken:
				t.Errorf("%d calls before it was suspended, %d when it woke up, %d after a rival took over; want no more", before, woken, exec.made())
			case !taken && asleep > 2*time.Second:
				t.Error("nobody took over")
			case !taken && exec.made() == woken:
				t.Error("it makes no calls though the partition is still its own")
			}
			first.kill()
			second.kill()
		})
	}
}
