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
	familySeeds = flag.Int("families", 0, "run all families of servers with so many seeds and print the table of docs/throttle.md")
	familyNames = flag.String("family", "", "with -families: only those whose names match; the adaptive law's figures alone")
)

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
		for _, m := range methods {
			f := mean(t, sc, m, seeds)
			fmt.Fprintf(&out, " %.3f / %.1f%% |", f.Utilisation, 100*f.Waste)
			if m == Adaptive && *familyNames != "" {
				fmt.Fprintf(&out, " rise %.1f, outage %.1f, Jain %.3f, longest %.0f s", f.RiseSeconds, f.OutageSeconds, f.Jain, f.LongestRow)
			}
			if math.IsNaN(f.Utilisation) || f.Utilisation > 1.2 {
				t.Errorf("%s, %v: %+v", sc.Name, m, f)
			}
		}
		fmt.Fprintln(&out)
	}
	if *familySeeds > 0 {
		mean, least := luckyAndUnlucky(t, 40)
		fmt.Fprintf(&out, "\nS5 over 40 seeds: %.3f on average, %.3f at least\n", mean, least)
		fmt.Println(out.String())
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
