package throttle

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/stagetest"
)

var outageSeeds = flag.Int("outages", 0, "run all outages with so many seeds, print the tables of figures.md, hold the goals")

func measureOutage(t *testing.T, sc *Scenario, m Method, seed uint64) (f OutageFigures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f = RunOutages(t.Context(), sc, m, seed) })
	return f
}

func meanOutages(t *testing.T, sc *Scenario, m Method, seeds int) OutageFigures {
	t.Helper()
	return MeanOutages(runs(seeds, func(seed uint64) OutageFigures { return measureOutage(t, sc, m, seed) }))
}

// outageGoal is what the pool must reach against a server that breaks down. Zero: no goal.
type outageGoal struct {
	failed      float64 // rows of a run, at most
	pools       float64 // calls wasted in an outage, at most, in pools
	backSeconds float64 // at most, on average
	utilisation float64 // at least
	random      bool    // the failures are no outage: no more rows may fail than do without origins
}

// Where probes reach the server their waits grow with the age of an outage, so after 120 s its end is noticed later than
// after 30 s: an even wait of 1.25 s would notice it as soon and cost a pool of calls more. Where half of all calls
// fail, a row may have used up its attempts before it is known.
var outageGoals = map[string]outageGoal{
	"refused, 30 s":         {pools: 2.1, backSeconds: 2.1},
	"502, 30 s":             {pools: 2.1, backSeconds: 2.1},
	"silent, 30 s":          {pools: 2.1, backSeconds: 2.1},
	"refused, 120 s":        {pools: 2.1, backSeconds: 2.1},
	"502, 120 s":            {pools: 3.5, backSeconds: 4.5},
	"silent, 120 s":         {pools: 3.5, backSeconds: 4.5},
	"flapping, refused":     {pools: 2.1, backSeconds: 2.1},
	"flapping, 502":         {pools: 2.1, backSeconds: 2.1},
	"every second refused":  {utilisation: 0.9},
	"half refused":          {utilisation: 0.9},
	"half fail":             {failed: 0.5},
	"half fail for ever":    {random: true},
	"cold start":            {pools: 2.1, backSeconds: 2.1},
	"restarts":              {pools: 2.1, backSeconds: 2.1},
	"a fifth fails, poison": {random: true},
}

// missed names the figures that miss the goal, which may be off by a share of it, with blind's beside them.
func (g outageGoal) missed(sc *Scenario, f, blind OutageFigures, slack float64) (names []string) {
	check := func(name string, ok bool) {
		if !ok {
			names = append(names, name)
		}
	}
	if g.random {
		check("rows failed", f.Failed <= blind.Failed*(1+slack))
		check("poison", math.IsNaN(f.Poison) || f.Poison == 1)
	} else {
		check("rows failed", f.Failed <= g.failed)
	}
	check("calls wasted", g.pools == 0 || f.Wasted <= g.pools*float64(sc.Pool)*(1+slack))
	check("back", g.backSeconds == 0 || f.Back <= g.backSeconds*(1+slack))
	check("utilisation", f.Utilisation >= g.utilisation*(1-slack/10))
	return names
}

// One run of each, with room for chance. TestOutageTable holds the goals themselves.
func TestAnOutageCostsNoRow(t *testing.T) {
	for _, limited := range []bool{true, false}[:stagetest.Runs(0, 1, 2)] {
		for _, sc := range Outages(32, limited) {
			t.Run(fmt.Sprintf("%s, limited %t", sc.Name, limited), func(t *testing.T) {
				sc.Rows /= stagetest.Stride(3) // then one outage of four is met
				g, f := outageGoals[sc.Name], measureOutage(t, sc, Adaptive, 1)
				var blind OutageFigures
				if g.random {
					blind = measureOutage(t, sc, Blind, 1)
				}
				if names := g.missed(sc, f, blind, 0.4); names != nil {
					t.Errorf("missed %v: %+v", names, f)
				}
			})
		}
	}
}

// docsSeeds is how many seeds the tables of figures.md are the mean of.
const docsSeeds = 10

// TestOutageTable prints the tables of figures.md about outages and holds the goals. It takes minutes: without
// -outages it runs nothing. With as many seeds as the page has it sees to it that the page is up to date.
func TestOutageTable(t *testing.T) {
	if *outageSeeds == 0 {
		t.Skip("runs with -outages")
	}
	docs, err := os.ReadFile("figures.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	row := func(line string) {
		fmt.Fprintln(&out, line)
		if *outageSeeds == docsSeeds && !strings.Contains(string(docs), line+"\n") {
			t.Errorf("figures.md is out of date, it lacks\n%s", line)
		}
	}
	figures := make(map[string][Blind + 1]OutageFigures)
	key := func(sc *Scenario, limited bool) string { return fmt.Sprint(sc.Name, sc.Pool, limited) }
	for _, limited := range []bool{false, true} {
		for _, size := range []int{32, 64} {
			for _, sc := range Outages(size, limited) {
				var all [Blind + 1]OutageFigures
				for _, m := range []Method{Adaptive, Blind, Backoff, Oracle} {
					if size == 32 || m == Adaptive || m == Blind && outageGoals[sc.Name].random {
						all[m] = meanOutages(t, sc, m, *outageSeeds)
					}
				}
				figures[key(sc, limited)] = all
				if names := outageGoals[sc.Name].missed(sc, all[Adaptive], all[Blind], 0); names != nil {
					t.Errorf("%s, pool of %d, limited %t, misses %v: %+v", sc.Name, size, limited, names, all[Adaptive])
				}
			}
		}
	}
	for _, limited := range []bool{false, true} {
		fmt.Fprintf(&out, "\nPool of 32, limited %t\n\n", limited)
		row("| server | the stage | blind | backoff | oracle |")
		fmt.Fprintln(&out, "| --- | --- | --- | --- | --- |")
		for _, sc := range Outages(32, limited) {
			all, oracle := figures[key(sc, limited)], ""
			if !sc.partly() {
				oracle = fmt.Sprintf(" %v", all[Oracle])
			}
			row(fmt.Sprintf("| %s: %s | %v | %v | %v |%s |", sc.Name, sc.About, all[Adaptive], all[Blind], all[Backoff], oracle))
		}
	}
	fmt.Fprint(&out, "\nPool of 64\n\n")
	row("| server | no limit | 20/s |")
	fmt.Fprintln(&out, "| --- | --- | --- |")
	for _, sc := range Outages(64, false) {
		row(fmt.Sprintf("| %s | %v | %v |", sc.Name, figures[key(sc, false)][Adaptive], figures[key(sc, true)][Adaptive]))
	}
	fmt.Println(out.String())
}

// String returns the figures as in the tables.
func (f OutageFigures) String() string {
	s := fmt.Sprintf("%.1f", f.Failed)
	if f.Failed == 0 || f.Failed >= 10 {
		s = fmt.Sprintf("%.0f", f.Failed)
	}
	if !math.IsNaN(f.Wasted) {
		s += fmt.Sprintf(" / %.0f", f.Wasted)
		if f.Refused > 0 {
			s += fmt.Sprintf(" + %.0f", f.Refused)
		}
		s += " / –"
		if !math.IsNaN(f.Back) {
			s = strings.TrimSuffix(s, "–") + fmt.Sprintf("%.1f s (%.1f)", f.Back, f.BackMost)
		}
	}
	return s + fmt.Sprintf(" / %.2f", f.Utilisation)
}
