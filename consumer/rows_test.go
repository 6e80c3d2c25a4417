package consumer_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A group of the whole window would leave the stage without rows to work on until the group is stored.
func TestAGroupLeavesRoomInTheWindow(t *testing.T) {
	const window, most = 400, 100
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(window)
		cfg := b.config("run", slowRow(1, 10*time.Second, time.Second))
		cfg.WindowRows = window
		b.startWith(cfg).stopAfter(b, window)
		var groups []int
		for _, m := range b.read("RESULTS", "results.stage.0.rows") {
			// All results of a fast group but the first are on condition of the stream's end.
			if m.Headers().Get(jetstream.ExpectedLastSeqHeader) == "" {
				groups = append(groups, 0)
			}
			groups[len(groups)-1]++
		}
		if largest := slices.Max(groups); largest == 1 || largest > most {
			t.Errorf("the largest group has %d of the window's %d rows, want 2 to %d", largest, window, most)
		}
	})
}

// One row ends at a time while the window is full of others: neither the room for it nor its ack is worth a message.
func TestAFullWindowAsksAndAcksForManyRowsAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const window, rows = 160, 1600
		b := newTestbed(t)
		b.load(rows)
		var pulls, acks atomic.Int32
		for subject, n := range map[string]*atomic.Int32{"$JS.API.CONSUMER.MSG.NEXT.>": &pulls, "$JS.ACK.ROWS.>": &acks} {
			stagetest.Value(b.nc.Subscribe(subject, func(*nats.Msg) { n.Add(1) }))(t)
		}
		cfg := b.config("a", &sleeper{latency: func(seq uint64) time.Duration { return time.Duration(min(seq, window)) * 10 * time.Millisecond }})
		cfg.WindowRows = window
		r := b.startWith(cfg)
		b.until(rows)
		time.Sleep(time.Second)
		if left := b.durable().NumAckPending; left > 0 {
			t.Errorf("%d rows are not acked, a second after the last result", left)
		}
		r.stop(t)
		b.check(rows)
		if pulls.Load() > rows/5 || acks.Load() > rows/5 {
			t.Errorf("%d requests and %d acks for %d rows", pulls.Load(), acks.Load(), rows)
		}
	})
}
