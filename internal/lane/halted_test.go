package lane

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// While an operator has paused it no batch is submitted, not even one that is full; those at the provider run on, and
// their answers are taken. The pause is shown, and when it ends the rows go.
func TestAPauseByAnOperatorSubmitsNoBatch(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.api.takes = time.Hour
		var paused atomic.Bool
		b.halted = func() error {
			if paused.Load() {
				return errors.New("paused by alice@laptop")
			}
			return nil
		}
		b.rows = 100
		b.open()
		b.until(2*time.Minute, "a batch at the provider", func() bool { return b.api.created() == 1 })
		paused.Store(true)
		b.add(100)
		time.Sleep(30 * time.Minute)
		if n, s := b.api.created(), b.lane.Status(); n != 1 || s.Paused != "paused by alice@laptop" {
			t.Errorf("half an hour later the provider has %d batches, want 1; paused: %q", n, s.Paused)
		}
		b.until(2*time.Hour, "the answers of the first batch", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.kept) == 100
		})
		paused.Store(false)
		b.until(3*time.Second, "a second batch at the provider", func() bool { return b.api.created() == 2 })
		b.await(3 * time.Hour)
		if s := b.lane.Status(); s.Paused != "" {
			t.Errorf("it is not paused any more, and shows %q", s.Paused)
		}
		b.close()
		b.check()
	})
}
