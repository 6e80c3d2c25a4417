package gate_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/llm-stage/stage/pool/gate"
)

const ms = time.Millisecond

func TestCallsPerMinuteNeverExceedTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 2000).Draw(t, "limit")
		g := gate.NewCallsPerMinute(limit)
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
	g := gate.NewPerMinute(60_000) // a thousand a second, but for the slack
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

// A share of a limit changes with what others use. What went while it was small is paid for at the new pace.
func TestAHigherLimitOpensTheGateSooner(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g := gate.NewPerMinute(60)
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
