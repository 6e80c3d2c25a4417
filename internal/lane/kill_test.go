package lane

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm/batchapi"
)

var steps = []string{
	"intent", "recorded", "uploading", "uploaded", "creating", "created", "submitted recorded", "polled", "fetching", "line",
	"done recorded", "deleting", "deleted", "purged",
}

// killAt kills the process the nth time that it takes a step.
func (b *bench) killAt(step string, n int) (killed <-chan struct{}) {
	done := make(chan struct{})
	var mu sync.Mutex
	count := 0
	b.onStep(func(s string) {
		mu.Lock()
		defer mu.Unlock()
		if s != step {
			return
		}
		if count++; count == n {
			b.kill()
			close(done)
		}
	})
	return done
}

// dieAt opens a term in which the process dies when it first takes a step.
func (b *bench) dieAt(step string) {
	killed := b.killAt(step, 1)
	b.open()
	<-killed
	b.onStep(nil)
	b.lane.Close()
}

func TestAKillAtAnyStepLosesNothing(t *testing.T) {
	for name, api := range kinds {
		for i, step := range steps {
			if name == "inline" && (step == "uploading" || step == "uploaded") {
				continue
			}
			for _, n := range []int{1, 2} {
				if testing.Short() && (n+i+len(name))%2 == 0 { // one kind has the first, the other the second
					continue
				}
				runVirtual(t, fmt.Sprintf("%s/%s/%d", name, step, n), func(t *testing.T) {
					b := newBench(t, api())
					b.rows = 250
					killed := b.killAt(step, n)
					b.open()
					select {
					case <-killed:
					case <-time.After(12 * time.Hour):
						t.Fatal("the step never came")
					}
					b.onStep(nil)
					b.lane.Close()
					b.open()
					b.settle(6 * time.Hour)
					b.check()
					if len(b.calls) > 0 {
						t.Errorf("%d live calls", len(b.calls))
					}
				})
			}
		}
	}
}

func TestManyKillsLoseNothing(t *testing.T) {
	withBench(t, func(_ *testing.T, b *bench) {
		b.api.lag = 5 * time.Second
		b.rows = 500
		for i := range 30 {
			killed := b.killAt(steps[i%len(steps)], 1+i%3)
			b.open()
			select {
			case <-killed:
			case <-time.After(20 * time.Minute):
				b.kill()
			}
			b.onStep(nil)
			b.lane.Close()
		}
		b.open()
		b.finish(6 * time.Hour)
	})
}

func TestALostAnswerIsAdopted(t *testing.T) {
	inBothKinds(t, func(t *testing.T, b *bench) {
		b.api.lag = 10 * time.Second
		b.api.onCreated = func(n int) error {
			if n == 0 {
				return errDead // no verdict
			}
			return nil
		}
		b.rows = 100
		b.open()
		b.settle(2 * time.Hour)
		b.check()
		if got, want := b.phases(), "intent adopted ended"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestABatchThatIsAbsentGathersAgain(t *testing.T) {
	inBothKinds(t, func(t *testing.T, b *bench) {
		failed := false
		b.api.onCreate = func(int, batchapi.Job) error {
			if !failed {
				failed = true
				return errDead
			}
			return nil
		}
		b.rows = 100
		b.open()
		b.finish(3 * time.Hour)
		if got, want := b.phases(), "intent abandoned intent submitted ended"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		certain := b.api.withdraw > 0
		if certain == b.api.limits.Inline {
			t.Errorf("withdrawn %d times", b.api.withdraw)
		}
	})
}

// The process is suspended between its proof of ownership and the creation, for longer than the next owner waits.
func TestALateCreationFails(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 100
		asleep, wake := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		b.onEvent = func(e *auditlog.Batch) {
			b.api.mu.Lock()
			defer b.api.mu.Unlock()
			if e.Phase == auditlog.BatchAbandoned && len(b.api.files) > 0 {
				t.Error("it is given up while it can still be created")
			}
		}
		b.onStep(func(s string) {
			if s == "creating" && once.CompareAndSwap(false, true) {
				close(asleep)
				<-wake
			}
		})
		b.open()
		<-asleep
		first, proc, nc := b.lane, b.proc, b.nc
		b.open()
		b.until(5*time.Minute, "the batch to be given up", func() bool { return strings.Contains(b.phases(), "submitted") })
		// What the first process sends now, it sends as if the request had been on its way.
		token := ""
		for _, e := range b.events {
			if e.Phase == auditlog.BatchAbandoned {
				token = e.Token
			}
		}
		if _, err := b.api.Create(t.Context(), batchapi.Job{Token: token, File: "file-" + token + "-0"}); err == nil {
			t.Error("the late creation succeeded")
		}
		close(wake)
		b.await(3 * time.Hour)
		proc.dead.Store(true)
		first.Close()
		nc.Close()
		b.close()
		b.check()
		if b.fenced == nil {
			t.Error("the first owner has not found out that it is fenced")
		}
	})
}

func TestAStrayBatchIsCancelled(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.limits.Inline = true // nothing can be withdrawn, and the list shows tokens
		b.api.lag = 2 * time.Minute
		b.api.onCreated = func(n int) error {
			if n == 0 {
				return errDead
			}
			return nil
		}
		b.rows = 100
		b.open()
		b.until(time.Hour, "the stray one to be cancelled", func() bool {
			b.api.mu.Lock()
			defer b.api.mu.Unlock()
			return len(b.api.cancels) == 1
		})
		b.await(3 * time.Hour)
		b.close()
		if got, want := b.phases(), "intent abandoned intent submitted cancelled ended"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestABatchOfAnotherAccountIsNeverGivenUp(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.rows = 100
		b.dieAt("created")
		b.account = "two"
		b.open()
		time.Sleep(6 * time.Hour)
		if len(b.kept) > 0 || len(b.api.batches) != 1 {
			t.Errorf("%d rows are answered, %d batches created", len(b.kept), len(b.api.batches))
		}
		if s := b.lane.Status(); len(s.Batches) != 1 || s.Batches[0].Problem == "" {
			t.Errorf("no problem is shown: %+v", s)
		}
		b.close()
		b.account = "one"
		b.open()
		b.finish(2 * time.Hour)
		if len(b.api.batches) != 1 {
			t.Errorf("%d batches created", len(b.api.batches))
		}
	})
}
