//go:build long

package stage_test

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/test/gateway"
)

// outAt takes an LLM down from begin to end after now, and counts the calls that hit the outage. Other calls last as
// long as took returns for their row.
func outAt(begin, end time.Duration, trouble gateway.State, took func(row int) time.Duration) (cfg llmtest.Config, met *atomic.Int64) {
	start, met := time.Now(), &atomic.Int64{}
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if at := time.Since(start); at < begin || at >= end {
			return &llmtest.Step{Delay: took(promptRow(c.Prompt))}
		}
		met.Add(1)
		if trouble == gateway.Silent {
			return &llmtest.Step{Trouble: llmtest.Stall}
		}
		return &llmtest.Step{Status: http.StatusBadGateway}
	}}, met
}

// Calls that were in flight when an outage began still succeed. Such a success does not show whether a later call
// failed because of its row or because of the provider.
func TestAnOutageFailsNoRowWhateverIsInFlight(t *testing.T) {
	between := func(least, most time.Duration) func(row int) time.Duration {
		return func(row int) time.Duration {
			return least + time.Duration(rand.New(rand.NewPCG(uint64(row), 0)).Int64N(int64(most-least)))
		}
	}
	const lasts = 30 * time.Second
	for _, tt := range []struct {
		name       string
		rows, pool int
		begin      time.Duration
		took       func(row int) time.Duration
	}{
		{"calls of a second", 400, 16, 5 * time.Second, between(time.Second, time.Second+1)},
		{"short calls", 2000, 16, 5 * time.Second, between(50*time.Millisecond, 150*time.Millisecond)},
		{"calls of many lengths", 400, 16, 5 * time.Second, between(100*time.Millisecond, 8*time.Second)},
		{"a small pool", 400, 4, 5 * time.Second, between(50*time.Millisecond, 450*time.Millisecond)},
		{"the last rows", 85, 16, 5 * time.Second, between(time.Second, time.Second+1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, met := outAt(tt.begin, tt.begin+lasts, gateway.BadGateway, tt.took)
				s := loaded(t, tt.rows, cfg)
				r := s.start(vars{"STAGE_POOL_SIZE": strconv.Itoa(tt.pool), "STAGE_RETRY_BASE_DELAY": "100ms"})
				s.await(tt.rows)
				r.stop()
				s.verify()
				failed := slices.DeleteFunc(s.results(0), func(r result) bool { return r.Fault == nil })
				if len(failed) > 0 {
					t.Errorf("%d of %d rows failed, the first: %s", len(failed), tt.rows, failed[0].Body)
				}
				switch n := int(met.Load()); {
				case n == 0:
					t.Error("no call hit the outage")
				case n > 2*tt.pool+30:
					t.Errorf("%d calls hit the outage, want at most two pools of %d and 30 probes", n, tt.pool)
				default:
					t.Logf("%d calls hit the outage", n)
				}
			})
		})
	}
}

// Once an LLM that has answered nothing for a minute is back, rows take at most 2 s longer than before.
func TestRowsAfterABlackHoleAreAsFastAsBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows, pool, begin, end = 2000, 64, 10 * time.Second, 70 * time.Second
		start := time.Now()
		cfg, _ := outAt(begin, end, gateway.Silent, func(int) time.Duration { return time.Second })
		s := loaded(t, rows, cfg)
		r := s.start(vars{"STAGE_POOL_SIZE": strconv.Itoa(pool), "STAGE_LLM_TIMEOUT": "20s"})
		s.await(rows)
		r.stop()
		a := s.verify()
		// The LLM may get the next call before it sees that the last one was abandoned.
		if most := s.llm.Stats().MaxInFlight; most > 2*pool {
			t.Errorf("%d calls in flight at the LLM, the pool has %d", most, pool)
		}
		var took []time.Duration
		var back time.Time // the first success
		for _, e := range a.rows {
			if e.E.Status != "success" {
				t.Fatalf("row %d failed: %s", e.E.Sequence, e.E.Reason)
			}
			if e.E.FinishedAt.Sub(start) > end && (back.IsZero() || e.E.FinishedAt.Before(back)) {
				back = e.E.FinishedAt
			}
			if e.E.StartedAt.Sub(start) >= end {
				took = append(took, e.E.FinishedAt.Sub(e.E.StartedAt))
			}
		}
		slices.Sort(took)
		if len(took) < rows/4 {
			t.Fatalf("only %d rows began after it", len(took))
		}
		if p99 := took[len(took)*99/100]; p99 > 3*time.Second {
			t.Errorf("the 99th percentile of %d rows is %v, want at most 3s", len(took), p99)
		}
		t.Logf("first success %v after it; %d rows began after it, median %v, p99 %v, max %v; all done %v after it",
			back.Sub(start)-end, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], time.Since(start)-end)
	})
}
