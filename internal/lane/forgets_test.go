package lane

import (
	"testing"
	"time"
)

// A batch of the built-in LLM of a process that was killed is gone: nobody waits for it to come back.
func TestABatchThatItsProviderForgotGathersAgain(t *testing.T) {
	withBench(t, func(t *testing.T, b *bench) {
		b.forgets = true
		b.api.takes = time.Hour
		b.rows = 100
		b.open()
		b.until(2*time.Minute, "a batch at the provider", func() bool { return b.api.created() == 1 })
		time.Sleep(time.Minute)
		b.kill()
		b.api.mu.Lock()
		b.api.batches = nil
		b.api.mu.Unlock()
		b.open()
		start := time.Now()
		b.until(5*time.Minute, "a second batch at the provider", func() bool { return b.api.created() == 1 })
		if took := time.Since(start); took > 3*time.Minute {
			t.Errorf("took %v", took)
		}
		b.await(3 * time.Hour)
		b.close()
		if got, want := b.phases(), "intent submitted abandoned intent submitted ended"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// created returns how many batches the provider has.
func (p *provider) created() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.batches)
}
