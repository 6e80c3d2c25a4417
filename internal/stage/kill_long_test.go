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

// TestAKillRepaysNoMoreTextsThanAreInFlight does the same to a stage that embeds rows, 64 in a call: each of 100,000
// has the vector of its own text, once and in its place, and a kill repays at most the texts of the calls in flight.
func TestAKillRepaysNoMoreTextsThanAreInFlight(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows, kills, size, each = 100_000, 60, 8, 64
		var texts atomic.Int64
		count := func(c llmtest.Call) *llmtest.Step {
			texts.Add(int64(len(c.Inputs)))
			return nil
		}
		l := newEmbedLab(t, rows, llmtest.Config{Latency: 200 * time.Millisecond, LatencySigma: .3, TextLatency: 100 * time.Microsecond, Script: count}, map[string]string{
			"STAGE_JOURNAL_AFTER": "0s", "STAGE_POOL_SIZE": strconv.Itoa(size), "STAGE_EMBED_ROWS": strconv.Itoa(each),
		})
		for n := range kills {
			r := l.start(nil, Options{})
			time.Sleep(1000*time.Millisecond + time.Duration(n%10)*50*time.Millisecond)
			r.kill()
		}
		done := len(l.bodies())
		l.work(rows, nil)
		checkVectors(l, rows)
		repaid := int(texts.Load()) - rows
		t.Logf("%d texts were repaid by %d kills, after which %d rows had results", repaid, kills, done)
		if repaid > kills*size*each || done == rows {
			t.Errorf("want at most %d", kills*size*each)
		}
	})
}
