//go:build long

package throttle

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
)

// TestFallbacks holds what a fallback of half the first server's rate must gain in a brown-out, and that in normal
// operation at a limit no row goes there. With -table it prints the table of figures.md.
func TestFallbacks(t *testing.T) {
	seeds := max(1, *tableSeeds)
	var out strings.Builder
	for _, sc := range Fallbacks() {
		brownout := strings.HasPrefix(sc.Name, "brown-out")
		switch {
		case *tableSeeds > 0:
		case sc.Rows > 20000:
			continue
		case !brownout:
			sc.Rows = min(sc.Rows, 3000)
		}
		f := combine(runs(seeds, func(seed uint64) (f FallbackFigures) {
			synctest.Test(t, func(t *testing.T) { f = RunFallback(t.Context(), sc, seed) })
			return f
		}), average)
		fmt.Fprintf(&out, "| %s | %.1f/s | %.1f/s | %.2f | %.1f%% | %.1f%% |\n", sc.Name, f.Alone, f.PerSec, f.PerSec/f.Alone, 100*f.Share, 100*f.Waste)
		if brownout && f.PerSec < 1.4*f.Alone {
			t.Errorf("%s: %.1f/s with the fallback, %.1f/s without: want 1.4 times as many", sc.Name, f.PerSec, f.Alone)
		}
		if !brownout && sc.Name != quotaWithFallback && f.Share > 0.001 {
			t.Errorf("%s: %.1f%% went to the fallback in normal operation", sc.Name, 100*f.Share)
		}
	}
	if *tableSeeds > 0 {
		fmt.Printf("\nA fallback of 10/s\n\n| server | alone | both | gain | by the fallback | waste |\n| --- | --- | --- | --- | --- | --- |\n%s", out.String())
	}
}

// Equal seeds give equal figures, whatever the scheduler does.
func TestRunsRepeat(t *testing.T) {
	for _, name := range []string{"S2h", "S5", "16 clients"} {
		for _, m := range []Method{Adaptive, Backoff} {
			sc := find(t, name, 500)
			a, b := measure(t, sc, m, 7), measure(t, sc, m, 7)
			if a.Utilisation != b.Utilisation || a.Waste != b.Waste || a.LongestRow != b.LongestRow || a.Jain != b.Jain {
				t.Errorf("%s, %v: %+v, then %+v", name, m, a, b)
			}
		}
	}
	if f := measure(t, find(t, "S1", 100), Adaptive, 1); !math.IsNaN(f.Probes) || f.Jain != 1 {
		t.Errorf("figures of a scenario without outage and rivals: %+v", f)
	}
}

// One run of some families, with fewer rows and room for chance.
func TestFamiliesInBrief(t *testing.T) {
	for name, rows := range map[string]int{
		"20/s, 2% sporadic": 2000, "200/s, 1% sporadic": 8000, "200/s, 5% sporadic": 8000,
		"GCRA, burst 1": 2000, "GCRA, burst 2": 2000, "out 1 s in 20, says 60 s": 9000,
	} {
		t.Run(name, func(t *testing.T) {
			sc := find(t, name, rows)
			law, oracle := measure(t, sc, Adaptive, 1), measure(t, sc, Oracle, 1)
			if least := familyGoal(name)*oracle.Utilisation - 0.05; law.Utilisation < least {
				t.Errorf("utilisation %.3f, want at least %.3f", law.Utilisation, least)
			}
		})
	}
}

// As do those of the families, but for calls that something refuses for no reason.
func TestOracleKnowsTheFamilies(t *testing.T) {
	for _, sc := range Families() {
		if strings.Contains(sc.Name, "sporadic") {
			continue
		}
		t.Run(sc.Name, func(t *testing.T) {
			sc.Rows = min(sc.Rows, 2000)
			if f := measure(t, sc, Oracle, 1); f.Waste > 0 || f.Utilisation < 0.97 || f.Utilisation > 1.1 {
				t.Errorf("the oracle's figures are %+v", f)
			}
		})
	}
}

// The models of servers are right if one who knows them meets no refusal and leaves nothing.
func TestOracleWastesNothing(t *testing.T) {
	for _, sc := range Scenarios() {
		if sc.Clients > 1 {
			continue // an oracle does not know what others do
		}
		t.Run(sc.Name, func(t *testing.T) {
			sc.Rows = 2000
			f := measure(t, sc, Oracle, 1)
			if random := sc.Name[:2] == "S5"; !random && f.Waste > 0 || f.Utilisation < 0.99 || f.Utilisation > 1.1 { // a minute has its 1200 calls from the start
				t.Errorf("the oracle's figures are %+v", f)
			}
		})
	}
}

// Wherever the server is unlike those that the law was tuned at, it is still no worse than the other methods.
func TestAdaptiveIsNeverFarBehind(t *testing.T) {
	for _, name := range []string{
		"burst 1", "refusals take 1s", "sigma 0.8", "1/s", "2000/s, calls of 50ms, pool 256",
		"pool 4", "sine of 60 s", "falls by steps to 0.2/s", "no limit",
	} {
		t.Run(name, func(t *testing.T) {
			sc := find(t, name, 1500)
			adaptive, backoff, classic := measure(t, sc, Adaptive, 1), measure(t, sc, Backoff, 1), measure(t, sc, Classic, 1)
			if best := max(backoff.Utilisation, classic.Utilisation); adaptive.Utilisation < min(best, 1)-0.03 {
				t.Errorf("utilisation %.3f, that of backoff is %.3f, of classic %.3f",
					adaptive.Utilisation, backoff.Utilisation, classic.Utilisation)
			}
		})
	}
}
