package consumer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// keyOf is the key of rows published by loadKeys.
func keyOf(row *consumer.Row) string {
	return streams.KeyHeader(strings.TrimPrefix(row.Subject, "rows."))
}

// ordered is the configuration of a replica in an order other than that of the stream.
func (b *testbed) ordered(order streams.Order, run string, exec consumer.Executor) consumer.Config {
	cfg := b.config(run, exec)
	cfg.Order, cfg.OrderKey, cfg.Key, cfg.OrderSpan = order, "subject.2", keyOf, 256
	return cfg
}

// loadKeys publishes rows of so many keys in turn.
func (b *testbed) loadKeys(rows, keys int) {
	b.t.Helper()
	for i := range rows {
		stagetest.Value(b.js.Publish(b.t.Context(), fmt.Sprintf("rows.k%d", i%keys), []byte(`{"n":`+strconv.Itoa(i)+`}`)))(b.t)
	}
}

// logged is what one message of the log says.
type logged struct {
	at, row, low, from uint64
	ahead              int
	claim              *streams.Claim
	key                string
}

func (b *testbed) readLog() (log []logged) {
	b.t.Helper()
	number := func(m jetstream.Msg, header string) uint64 {
		if m.Headers().Get(header) == "" {
			return 0
		}
		n, err := strconv.ParseUint(m.Headers().Get(header), 10, 64)
		if err != nil {
			b.t.Fatalf("header %s: %v", header, err)
		}
		return n
	}
	for _, m := range b.read("RESULTS", "results.stage.0.>") {
		md := stagetest.Value(m.Metadata())(b.t)
		l := logged{
			at: md.Sequence.Stream, row: number(m, streams.HeaderSourceSeq), low: number(m, streams.HeaderLow), from: number(m, streams.HeaderAheadFrom),
			ahead: int(number(m, streams.HeaderAhead)), key: m.Headers().Get(streams.HeaderKey), //nolint:gosec // a count
		}
		if strings.HasSuffix(m.Subject(), ".claim") {
			stagetest.Must(b.t, json.Unmarshal(m.Data(), &l.claim))
		}
		log = append(log, l)
	}
	return log
}

// checkOrder checks the log of rows 1 to n, all of which are there: each has one result, within its key in order, and
// what each message says about the rows before it is true.
func (b *testbed) checkOrder(n uint64) {
	b.t.Helper()
	done := make(map[uint64]uint64) // row: where its result is
	last := make(map[string]uint64)
	low := uint64(0)
	results := b.read("RESULTS", "results.stage.0.rows")
	for _, l := range b.readLog() {
		if l.claim == nil {
			if done[l.row] > 0 {
				b.t.Fatalf("row %d has a result at %d and at %d", l.row, done[l.row], l.at)
			}
			done[l.row] = l.at
			if l.key != "" {
				if l.row < last[l.key] {
					b.t.Errorf("row %d of key %s comes after row %d", l.row, l.key, last[l.key])
				}
				last[l.key] = l.row
			}
		} else if l.claim.HighWaterMark != l.low || l.row != l.low {
			b.t.Errorf("the claim at %d names rows %d and %d, its low-water mark is %d", l.at, l.claim.HighWaterMark, l.row, l.low)
		}
		if l.low < low {
			b.t.Errorf("at %d the low-water mark fell from %d to %d", l.at, low, l.low)
		}
		for low = max(low, 1); low <= l.low; low++ {
			if done[low] == 0 {
				b.t.Fatalf("at %d the low-water mark is %d, and row %d has no result", l.at, l.low, low)
			}
		}
		low = l.low
		ahead, first := 0, l.at
		for row, at := range done {
			if row > low {
				ahead, first = ahead+1, min(first, at)
			}
		}
		if ahead != l.ahead || ahead > 0 && l.from > first {
			b.t.Fatalf("at %d: %d rows above %d from %d on, it says %d from %d on", l.at, ahead, low, first, l.ahead, l.from)
		}
	}
	for row := uint64(1); row <= n; row++ {
		if done[row] == 0 {
			b.t.Errorf("row %d has no result", row)
		}
	}
	if low != n {
		b.t.Errorf("the log ends with low-water mark %d, want %d", low, n)
	}
	b.checkAudit(results, nil)
}

// checkStart is what a process does before it serves any of its partitions.
func (b *testbed) checkStart(cfg consumer.Config) error {
	b.t.Helper()
	cfg.Recorder = recorder.New(b.nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: cfg.Name, Logger: cfg.Logger})
	c := stagetest.Value(consumer.New(b.nc, cfg))(b.t)
	return c.Check(b.t.Context())
}

var everyOrder = []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone}

var otherOrders = []streams.Order{streams.OrderKey, streams.OrderNone}

// One row takes a long time. In the meantime the rows of other keys come out, as many as the span allows, and no row waits
// that need not.
func TestOneRowHoldsUpItsKeyAlone(t *testing.T) {
	for _, order := range otherOrders {
		runOnTestbed(t, string(order), func(t *testing.T, b *testbed) {
			b.loadKeys(400, 20)
			r := b.startWith(b.ordered(order, "run1", hotExecutor(5)))
			want := 4 + 256 - 1 // the span above row 4, without row 5
			if order == streams.OrderKey {
				want -= 12 // later rows of its key
			}
			b.until(want)
			time.Sleep(time.Minute)
			if got := b.results(); got != want {
				t.Errorf("got %d results while row 5 waits, want %d", got, want)
			}
			st := r.Status()
			if st.HighWaterMark != 4 || st.Ahead != want-4 {
				t.Errorf("low-water mark %d, %d rows above it, want 4 and %d", st.HighWaterMark, st.Ahead, want-4)
			}
			if order == streams.OrderKey && (st.KeysWaiting != 1 || st.WaitedFor != 5 || st.WaitedForKey != "k4") {
				t.Errorf("%d keys wait, for row %d of %q, want one for row 5 of k4", st.KeysWaiting, st.WaitedFor, st.WaitedForKey)
			}
			if got := b.durable(); got.AckFloor.Stream != 4 {
				t.Errorf("rows up to %d are acked, want 4", got.AckFloor.Stream)
			}
			r.stopAfter(b, 400)
			b.checkOrder(400)
			if got := b.durable(); got.NumAckPending != 0 || got.AckFloor.Stream != 400 {
				t.Errorf("in the end: ack pending %d, floor %d, want 0 and 400", got.NumAckPending, got.AckFloor.Stream)
			}
		})
	}
}

func TestAKilledOwnerIsReplacedInEveryOrder(t *testing.T) {
	for _, order := range append(otherOrders, streams.OrderStream) {
		runOnTestbed(t, string(order), func(_ *testing.T, b *testbed) {
			b.loadKeys(300, 20)
			exec := &sleeper{latency: func(seq uint64) time.Duration {
				if seq%37 == 0 {
					return 3 * time.Second
				}
				return time.Duration(50+seq*7919%400) * time.Millisecond
			}}
			for i := range 4 {
				r := b.startWith(b.ordered(order, "run"+strconv.Itoa(i), exec))
				b.until((i + 1) * 50)
				r.kill()
			}
			r := b.startWith(b.ordered(order, "last", exec))
			r.stopAfter(b, 300)
			exec.wg.Wait()
			if order == streams.OrderStream {
				b.check(300)
			} else {
				b.checkOrder(300)
			}
		})
	}
}

// The order may change while nothing is emitted ahead of a row that waits, and only then.
func TestTheOrderChangesWhereItIsSafe(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		exec := &sleeper{low: 50 * time.Millisecond, high: 300 * time.Millisecond}
		rows := 0
		for i, order := range []streams.Order{
			streams.OrderStream, streams.OrderKey, streams.OrderStream, streams.OrderNone, streams.OrderKey, streams.OrderStream,
		} {
			b.loadKeys(50, 5)
			rows += 50
			cfg := b.ordered(order, "run"+strconv.Itoa(i), exec)
			r := b.startWith(cfg)
			r.stopAfter(b, rows)
		}
		var orders []streams.Order
		for _, l := range b.readLog() {
			if l.claim != nil {
				orders = append(orders, l.claim.Order)
				if (l.claim.Order == "") != (l.claim.Version == 1) {
					t.Errorf("a claim of order %q has version %d", l.claim.Order, l.claim.Version)
				}
			}
		}
		if want := []streams.Order{"", "key", "", "none", "key", ""}; !slices.Equal(slices.Compact(orders), want) {
			t.Errorf("got claims of the orders %q, want %q", orders, want)
		}
	})
}

func TestAnotherOrderIsRefusedWhereRowsAreAhead(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.loadKeys(60, 5)
		exec := slowRow(10, time.Hour, 50*time.Millisecond)
		r := b.startWith(b.ordered(streams.OrderKey, "run1", exec))
		b.until(48)
		r.kill()
		time.Sleep(5 * time.Second)
		for _, change := range []func(*consumer.Config){
			func(c *consumer.Config) { c.Order = streams.OrderStream },
			func(c *consumer.Config) { c.Order = streams.OrderNone },
			func(c *consumer.Config) { c.OrderKey = "field.customer" },
		} {
			cfg := b.ordered(streams.OrderKey, "other", exec)
			change(&cfg)
			if err := b.checkStart(cfg); err == nil {
				t.Errorf("order %s by %s: a check finds nothing", cfg.Order, cfg.OrderKey)
			}
			other := b.startWith(cfg)
			if err := <-other.done; err == nil || !strings.Contains(err.Error(), "of the rows after row 9, which wait, ") {
				t.Errorf("order %s by %s: got error %v", cfg.Order, cfg.OrderKey, err)
			}
			other.kill()
		}
		r = b.startWith(b.ordered(streams.OrderKey, "run2", &sleeper{low: 50 * time.Millisecond, high: 300 * time.Millisecond}))
		r.stopAfter(b, 60)
		b.checkOrder(60)
		cfg := b.ordered(streams.OrderStream, "run3", exec)
		r = b.startWith(cfg)
		b.await("an owner", func() bool { return r.Status().Role == consumer.Standby })
		time.Sleep(10 * time.Second)
		r.stop(t)
	})
}

// On a work queue acks delete rows: those that are emitted ahead of one that waits never come again.
func TestAnyOrderOnAWorkQueue(t *testing.T) {
	for _, order := range otherOrders {
		runVirtual(t, string(order), func(t *testing.T) {
			b := bare(t)
			stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Retention: jetstream.WorkQueuePolicy}))(t)
			stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
			b.loadKeys(200, 20)
			r := b.startWith(b.ordered(order, "run1", hotExecutor(5)))
			b.until(185)
			r.kill()
			exec := &sleeper{low: 50 * time.Millisecond, high: 300 * time.Millisecond}
			r = b.startWith(b.ordered(order, "run2", exec))
			r.stopAfter(b, 200)
			b.checkOrder(200)
			if got := b.stored("ROWS", "rows.>"); got != 0 {
				t.Errorf("%d rows are left in the input", got)
			}
			// All is done, and says so: another order may follow.
			r = b.startWith(b.ordered(streams.OrderStream, "run3", exec))
			b.loadKeys(10, 5)
			r.stopAfter(b, 210)
		})
	}
}

// A reply that waits for a long time is at the front of the journal, and thousands are kept and emitted behind it.
func TestTheJournalStaysSmallWhileAReplyWaits(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		exec := &sleeper{latency: func(seq uint64) time.Duration {
			switch {
			case seq == 1:
				return scaled().aLongTime
			case seq%2 == 1:
				return 300 * time.Millisecond
			}
			return 50 * time.Millisecond
		}}
		const rows = 1200
		for i := range rows {
			b.publish(fmt.Sprintf("rows.k%d", i/2), i)
		}
		cfg := b.ordered(streams.OrderKey, "run1", exec)
		cfg.OrderSpan = 2 * rows
		r := b.startWith(cfg)
		most := 0
		b.await("all but two results", func() bool {
			most = max(most, b.stored("JOURNAL", "journal.stage.0.>"))
			return b.results() == rows-2
		})
		if limit := 2*64 + 256 + 128; most > limit {
			t.Errorf("the journal held %d entries, want %d at most", most, limit)
		}
		t.Logf("at most %d entries", most)
		r.kill()
		next := &sleeper{low: 50 * time.Millisecond, high: 300 * time.Millisecond}
		r = b.startWith(b.ordered(streams.OrderKey, "run2", next))
		r.stopAfter(b, rows)
		b.checkOrder(rows)
		if next.kept != 1 || next.calls[2] != 0 {
			t.Errorf("%d replies came from the journal, row 2 was called %d times more, want 1 and 0", next.kept, next.calls[2])
		}
	})
}
