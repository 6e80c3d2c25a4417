package pool_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
	"github.com/llm-stage/stage/pool/gate"
)

// heavy is a job that knows its weight.
type heavy int64

func (h heavy) Weight(int) int64 { return int64(h) }

func TestGatesPaceTheDispatchOfAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := gate.NewPerMinute(6000)
		cfg := fallbacks(10, 1)
		cfg.Gates = []pool.Gate{tokens}
		cfg.Fallbacks[0].Gates = []pool.Gate{tokens}
		begin := time.Now()
		p := running(t, cfg, func(_ context.Context, in heavy, a pool.Attempt) (int, pool.Verdict) {
			if a.Server == 0 && in%200 == 0 {
				return 0, reset // twice, then the fallback has it
			}
			return 0, pool.Verdict{Weight: int64(in) / 2}
		})
		execute(t, p, slices.Repeat([]heavy{100, 200}, 30))
		// 30 of 100, half of it in the end, and 30 of 200 twice in full and once in half: 16500 of 6000 a minute.
		if took := time.Since(begin); took < 160*time.Second || took > 170*time.Second {
			t.Errorf("took %v, want about 165s", took)
		}
	})
}

// TestAtMostHoldsOneServerAndNotTheOther: two calls at a time at the first server; jobs that have gone to the fallback do
// not wait for it, and neither do they overtake at the same server.
func TestAtMostHoldsOneServerAndNotTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := fallbacks(8, 1)
		cfg.Gates = []pool.Gate{gate.NewAtMost(2)}
		var first, fallback gauge
		p := running(t, cfg, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			g := &first
			if a.Server == 1 {
				g = &fallback
			}
			return g.watch(func(context.Context, int, pool.Attempt) (int, pool.Verdict) {
				if a.Server == 0 && in%2 == 0 {
					time.Sleep(ms)
					return 0, reset
				}
				time.Sleep(time.Second)
				return 0, ok
			})(ctx, in, a)
		})
		batch(t, p, 40)
		if first.most != 2 || fallback.most < 2 {
			t.Errorf("at most %d calls at the first server, want 2; %d at the fallback, want several", first.most, fallback.most)
		}
	})
}
