package lane

import (
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// Whatever record a process has stored when it is killed, the next one records the events that tell of it again.
func TestAKillLosesNoEvent(t *testing.T) {
	for step, want := range map[string]auditlog.BatchPhase{
		"recorded": auditlog.BatchIntent, "submitted recorded": auditlog.BatchSubmitted, "abandoned recorded": auditlog.BatchAbandoned,
	} {
		runVirtual(t, step, func(t *testing.T) {
			b := newBench(t, fileProvider())
			b.rows = 20
			kill := func(step string) {
				killed := b.killAt(step, 1)
				b.open()
				<-killed
				b.lane.Close()
			}
			if want == auditlog.BatchAbandoned {
				kill("recorded")
			}
			kill(step)
			b.step, b.again = nil, nil
			b.open()
			b.await(4 * time.Hour)
			b.close()
			if !slices.ContainsFunc(b.again, func(e *auditlog.Batch) bool { return e.Phase == want && e.Rows == 20 }) {
				t.Errorf("the events that are recorded again lack %s: %+v", want, b.again)
			}
		})
	}
}

// The records of a batch are what a lost event is made of again: they stay until all its events are stored.
func TestABatchIsDoneWhenItsEventsAreStored(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		var stored []func()
		b.hold = func(f func()) { stored = append(stored, f) }
		b.rows = 20
		b.open()
		b.await(4 * time.Hour)
		time.Sleep(time.Hour)
		if got := b.lane.Status().Batches; len(got) != 1 || got[0].State != StateSettling {
			t.Errorf("got %+v, want a batch that settles", got)
		}
		b.mu.Lock()
		for _, f := range stored {
			f()
		}
		b.mu.Unlock()
		b.until(time.Hour, "an empty lane", func() bool { return len(b.lane.Status().Batches) == 0 })
		b.close()
	})
}
