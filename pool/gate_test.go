package pool_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/llm-stage/stage/pool"
)

func TestCallsPerMinuteNeverExceedTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 2000).Draw(t, "limit")
		g := pool.NewCallsPerMinute(limit)
		begin := time.Unix(0, 0)
		now := begin
		var sent []time.Time
		for range 3 * limit {
			if rapid.IntRange(0, 50).Draw(t, "idle") == 0 {
				now = now.Add(time.Duration(rapid.IntRange(0, 90000).Draw(t, "for")) * ms)
			}
			if next := g.Next(now, 1); next.After(now) {
				now = next.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "late")) * ms)
			}
			g.Sent(now, 1)
			sent = append(sent, now)
			g.Ended(now, 1, 0)
		}
		for i := limit; i < len(sent); i++ {
			if d := sent[i].Sub(sent[i-limit]); d < time.Minute-time.Millisecond {
				t.Fatalf("%d calls within %v", limit+1, d)
			}
		}
	})
}

func TestPerMinuteSpreadsWeightEvenly(t *testing.T) {
	g := pool.NewPerMinute(60_000) // a thousand a second, but for the slack
	now := time.Unix(0, 0)
	next := func() time.Duration { return g.Next(now, 0).Sub(now).Round(50 * ms) }
	g.Sent(now, 5000)
	if got := next(); got != 4900*ms {
		t.Errorf("after 5000: %v", got)
	}
	g.Ended(now, 5000, 2000) // it was lighter
	if got := next(); got != 1900*ms {
		t.Errorf("after a correction to 2000: %v", got)
	}
	g.Sent(now, 1000)
	g.Ended(now, 1000, 3000) // it was heavier
	if got := next(); got != 4900*ms {
		t.Errorf("after 3000 more: %v", got)
	}
	now = now.Add(time.Hour)
	g.Sent(now, 1000) // an idle hour saves nothing up
	if got := next(); got != 900*ms {
		t.Errorf("after an idle hour: %v", got)
	}
	g.Sent(now, 1<<62)
	if got := g.Next(now, 0).Sub(now); got > 2*time.Hour {
		t.Errorf("one attempt closed the gate for %v", got)
	}
}

// heavy is a job that knows its weight.
type heavy int64

func (h heavy) Weight(int) int64 { return int64(h) }

func TestGatesPaceTheDispatchOfAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := pool.NewPerMinute(6000)
		cfg := fallbacks(10, 1)
		cfg.Gates = []pool.Gate{tokens}
		cfg.Fallbacks[0].Gates = []pool.Gate{tokens}
		begin := time.Now()
		p, err := pool.New(cfg, func(_ context.Context, in heavy, a pool.Attempt) (int, pool.Verdict) {
			if a.Server == 0 && in%200 == 0 {
				return 0, reset // twice, then the fallback has it
			}
			return 0, pool.Verdict{Weight: int64(in) / 2}
		})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- p.Run(context.Background()) }()
		if _, err := p.ExecuteBatch(t.Context(), slices.Repeat([]heavy{100, 200}, 30)); err != nil {
			t.Fatal(err)
		}
		// 30 of 100, half of it in the end, and 30 of 200 twice in full and once in half: 16500 of 6000 a minute.
		if took := time.Since(begin); took < 160*time.Second || took > 170*time.Second {
			t.Errorf("took %v, want about 165s", took)
		}
		p.Drain()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

// TestAtMostHoldsOneServerAndNotTheOther: two calls at a time at the first server; jobs that have gone to the fallback do
// not wait for it, and neither do they overtake at the same server.
func TestAtMostHoldsOneServerAndNotTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := fallbacks(8, 1)
		cfg.Gates = []pool.Gate{pool.NewAtMost(2)}
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

// A share of a limit changes with what others use. What went while it was small is paid for at the new pace.
func TestAHigherLimitOpensTheGateSooner(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g := pool.NewPerMinute(60)
	g.Sent(now, 1000) // a thousand seconds
	now = now.Add(100 * time.Second)
	g.SetLimit(now, 60_000)
	if wait := g.Next(now, 1).Sub(now); wait < 700*time.Millisecond || wait > time.Second {
		t.Errorf("at a thousand a second the gate opens in %v, want about .8 s", wait)
	}
	g.SetLimit(now, 600)
	if wait := g.Next(now, 1).Sub(now); wait < 88*time.Second || wait > 91*time.Second {
		t.Errorf("at ten a second the gate opens in %v, want about 90 s", wait)
	}
}
