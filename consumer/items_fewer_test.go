package consumer_test

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

// refused is an executor whose first call for row 1 finds no capacity.
type refused struct {
	consumer.Executor
	fansOut bool
}

func (r refused) Start(row *consumer.Row) {
	if row.Seq == 1 {
		call := &auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallCapacityRetry}
		if r.fansOut {
			call.Item = new(0)
		}
		row.RecordCall(call)
	}
	r.Executor.Start(row)
}

// The array of rows has become shorter, or rows are answered as a whole now: what is kept of elements that row 1 no longer
// has must not keep the entries of all rows behind it, while row 1 waits for its call for hours. Nor may its own entry go
// with theirs.
func TestRepliesToElementsThatARowNoLongerHasKeepNoEntries(t *testing.T) {
	for name, elements := range map[string]int{"fewer elements": 2, "no elements": 0} {
		runVirtual(t, name, func(t *testing.T) {
			const rows = 700
			b := newTestbed(t)
			b.load(1) // of a key of its own
			start := func(run string, exec consumer.Executor) *replica {
				cfg := b.ordered(streams.OrderKey, run, exec)
				cfg.JournalAfter, cfg.OrderSpan, cfg.WindowRows = 0, 2*rows, 16
				return b.startWith(cfg)
			}
			hour := func(of simElement) time.Duration {
				if of == (simElement{1, 0}) {
					return scaled().aLongTime
				}
				return time.Duration(1+(of.row+uint64(of.item))%2*9) * 10 * time.Millisecond //nolint:gosec // small
			}
			first := newFanner(b, 3, hour)
			r := start("first", first)
			first.await(3)
			time.Sleep(time.Second)
			r.kill()
			b.loadKeys(rows-1, 1)
			var exec consumer.Executor = newFanner(b, elements, hour)
			if elements == 0 {
				exec = &sleeper{over: t.Context().Done(), latency: func(seq uint64) time.Duration { return hour(simElement{seq, 0}) }}
			}
			r = start("second", refused{exec, elements > 0})
			b.until(rows - 1)
			time.Sleep(10 * time.Second)
			if got, most := b.stored("JOURNAL", "journal.stage.0.>"), 500; got > most {
				t.Errorf("%d messages are in the journal while row 1 waits, want at most %d", got, most)
			}
			time.Sleep(scaled().aLongTime)
			r.stopAfter(b, rows)
		})
	}
}
