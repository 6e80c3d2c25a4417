package throttle

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
)

var tableSeeds = flag.Int("table", 0, "run everything with so many seeds, print the tables of figures.md, hold the goals")

// seedsFrom is the first seed of all tables. A change of the law is tuned with some seeds
// and judged by others, so that it is not the chance of a few that decides.
var seedsFrom = flag.Uint64("seeds", 1000, "the first seed of the tables")

// TestTable prints the tables of figures.md and holds the goals. It takes minutes: without -table it runs one
// scenario, to see that it works.
func TestTable(t *testing.T) {
	scenarios, grid, seeds := Scenarios(), Grid(), *tableSeeds
	if seeds == 0 {
		scenarios, grid, seeds = []*Scenario{find(t, "S1", 300)}, []*Scenario{find(t, "pool 4", 300)}, 1
	}
	var out strings.Builder
	table := func(title string, list []*Scenario) [][4]Figures {
		fmt.Fprintf(&out, "\n%s\n\n| server | adaptive | backoff | classic | oracle |\n| --- | --- | --- | --- | --- |\n", title)
		rows := make([][4]Figures, len(list))
		for i, sc := range list {
			fmt.Fprintf(&out, "| %s |", strings.TrimSuffix(sc.Name+": "+sc.About, ": "))
			for _, m := range []Method{Adaptive, Backoff, Classic, Oracle} {
				if m == Oracle && sc.Clients > 1 {
					fmt.Fprint(&out, " |")
					continue
				}
				rows[i][m] = mean(t, sc, m, seeds)
				fmt.Fprintf(&out, " %.3f / %.1f%% |", rows[i][m].Utilisation, 100*rows[i][m].Waste)
			}
			fmt.Fprintln(&out)
		}
		return rows
	}

	rows := table("Utilisation / waste", scenarios)
	fmt.Fprint(&out, "\nMore of the adaptive law\n\n")
	fmt.Fprintln(&out, "| server | time, by the oracle's | p99 of a row, by a call's | longest row | head of line | after a rise | after an outage | probes | Jain |")
	fmt.Fprintln(&out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for i, sc := range scenarios {
		f := rows[i][Adaptive]
		fmt.Fprintf(&out, "| %s | %s | %.2f | %.1f s | %.1f s | %s | %s | %s | %s |\n", sc.Name,
			figure(f.Seconds/rows[i][Oracle].Seconds, "%.3f"), f.RowP99, f.LongestRow, f.HeadOfLine,
			figure(f.RiseSeconds, "%.1f s"), figure(f.OutageSeconds, "%.1f s"), figure(f.Probes, "%.0f"), figure(f.Jain, "%.3f"))
		if missed := goals[sc.Name].missed(f, 0); missed != nil && *tableSeeds > 0 {
			t.Errorf("%s misses %v: %+v", sc.Name, missed, f)
		}
		if sc.Clients == 1 && !strings.HasSuffix(sc.Name, "h") && f.waitsTooLong(sc.Name) && *tableSeeds > 0 {
			t.Errorf("%s: rows wait too long: %+v", sc.Name, f)
		}
	}
	for i, row := range table("Off the tuned point, utilisation / waste", grid) {
		best := min(1, max(row[Backoff].Utilisation, row[Classic].Utilisation))
		if g, ok := goals[grid[i].Name]; ok && g.missed(row[Adaptive], 0) == nil || *tableSeeds == 0 {
			continue
		}
		if row[Adaptive].Utilisation < best-0.02 {
			t.Errorf("%s: utilisation %.3f, more than two points below %.3f", grid[i].Name, row[Adaptive].Utilisation, best)
		}
	}
	if *tableSeeds > 0 {
		fmt.Println(out.String())
	}
}

func mean(t *testing.T, sc *Scenario, m Method, seeds int) Figures {
	t.Helper()
	return Mean(runs(seeds, func(seed uint64) Figures { return measure(t, sc, m, seed) }))
}

// figure formats a figure that may not exist.
func figure(x float64, format string) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "–"
	}
	return fmt.Sprintf(format, x)
}
