package throttle

import (
	"flag"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
)

var (
	familySeeds = flag.Int("families", 0, "run all families of servers with so many seeds and print the table of figures.md")
	familyNames = flag.String("family", "", "with -families: only those whose names match; the adaptive law's figures alone")
)

// familyGoal is what the law must reach of the oracle's utilisation, as the mean of three seeds.
func familyGoal(name string) float64 {
	goals := []struct {
		pattern string
		least   float64
	}{
		{`^\d+/s, 5% sporadic`, 0.90},
		{`^\d+/s, .* sporadic`, 0.95},
		{`^S2, 2% sporadic`, 0.94},
		{"GCRA, burst 1$", 0.84},
		{"GCRA, burst 2$", 0.97},
		{"GCRA, burst 10", 0.99},
		{"out 1 s in 20, says 60 s", 0.92},
		{"20 s each, says 60 s", 0.93},
		{"says how long", 0.95},
		{"429 for 1 s", 0.95},
		{"ramp|queue|low|120 in each|60s, 2/s", 0.97},
		{"tenant .* 5 s", 0.75},
		{"tenant", 0.86},
		{"at once, 60", 0.82},
		{"at once, 10", 0.73},
		{"20ms", 0.84},
		{"refusals take 5s", 0.84},
		{"1200 in any", 0.94},
		{"tokens", 0.77},
	}
	for _, g := range goals {
		if regexp.MustCompile(g.pattern).MatchString(name) {
			return g.least
		}
	}
	return 0.75
}

// TestFamilies prints the table of servers that the law was not built for. Without -families it runs one of them, to see
// that it works.
func TestFamilies(t *testing.T) {
	list, seeds := Families(), *familySeeds
	if seeds == 0 {
		list, seeds = []*Scenario{find(t, "low: 1/s", 50)}, 1
	}
	methods := []Method{Adaptive, Backoff, Classic, Oracle}
	if *familyNames != "" {
		list, methods = append(append(Scenarios(), Grid()...), list...), []Method{Adaptive}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| server | adaptive | backoff | classic | oracle |\n| --- | --- | --- | --- | --- |\n")
	for _, sc := range list {
		if !regexp.MustCompile(*familyNames).MatchString(sc.Name) {
			continue
		}
		fmt.Fprintf(&out, "| %s |", sc.Name)
		var got [Oracle + 1]Figures
		for _, m := range methods {
			f := mean(t, sc, m, seeds)
			got[m] = f
			fmt.Fprintf(&out, " %.3f / %.1f%% |", f.Utilisation, 100*f.Waste)
			if m == Adaptive && *familyNames != "" {
				fmt.Fprintf(&out, " rise %.1f, outage %.1f, Jain %.3f, longest %.0f s", f.RiseSeconds, f.OutageSeconds, f.Jain, f.LongestRow)
			}
			if math.IsNaN(f.Utilisation) || f.Utilisation > 1.2 {
				t.Errorf("%s, %v: %+v", sc.Name, m, f)
			}
		}
		fmt.Fprintln(&out)
		if goal := familyGoal(sc.Name) * got[Oracle].Utilisation; got[Adaptive].Utilisation < goal && *familySeeds > 0 {
			t.Errorf("%s: utilisation %.3f, want at least %.3f", sc.Name, got[Adaptive].Utilisation, goal)
		}
	}
	if *familySeeds > 0 {
		mean, least := luckyAndUnlucky(t, 40)
		fmt.Fprintf(&out, "\nS5 over 40 seeds: %.3f on average, %.3f at least\n", mean, least)
		fmt.Println(out.String())
		if mean < 0.95 || least < 0.8 {
			t.Errorf("S5 over 40 seeds: %.3f on average, %.3f at least; want 0.95 and 0.80", mean, least)
		}
	}
}

// luckyAndUnlucky returns the mean and the least utilisation of S5, where it is up to chance how soon noise is noticed.
func luckyAndUnlucky(t *testing.T, seeds uint64) (mean, least float64) {
	t.Helper()
	least = math.Inf(1)
	for seed := range seeds {
		u := measure(t, find(t, "S5", 5000), Adaptive, seed).Utilisation
		mean += u / float64(seeds)
		least = min(least, u)
	}
	return mean, least
}
