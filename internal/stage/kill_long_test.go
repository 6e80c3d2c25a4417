//go:build long

package stage

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestAKillRepaysNoMoreCallsThanThePoolHas repeatedly kills a stage that keeps every reply at once.
func TestAKillRepaysNoMoreCallsThanThePoolHas(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows, size = 600, 8
		var calls atomic.Int64
		count := func(llmtest.Call) *llmtest.Step {
			calls.Add(1)
			return nil
		}
		l := newLab(t, llmtest.Config{Latency: 20 * time.Millisecond, LatencySigma: .5, Script: count}, map[string]string{
			"STAGE_JOURNAL_AFTER": "0s", "STAGE_POOL_SIZE": strconv.Itoa(size),
		})
		for n := range rows {
			l.load(strconv.Itoa(n))
		}
		kills := 0
		for len(l.results()) < rows-100 {
			r := l.start(nil, Options{})
			time.Sleep(300*time.Millisecond + time.Duration(kills)*7*time.Millisecond)
			r.kill()
			kills++
		}
		l.work(rows, nil)
		if repaid := int(calls.Load()) - rows; repaid > kills*size {
			t.Errorf("%d calls were repeated after %d kills, want at most the %d of the pool for each", repaid, kills, size)
		} else {
			t.Logf("%d calls were repeated after %d kills", repaid, kills)
		}
	})
}
