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
	targetSeeds = flag.Int("targets", 0, "print the table of targets.md, long runs with so many seeds, timed jobs with at least 40")
	targetNames = flag.String("target", "", "with -targets: only those whose names match; the adaptive law's figures alone")
)

// leastTimed is how many seeds a timed job takes at least: chance decides whether a short
// job meets its refusals early or late, and the worst of a few runs says nothing.
const leastTimed = 40

// TestTargets prints what each way to cope with a limit reaches, beside what a law should
// reach. Without -targets it runs a few of them, and holds what the law reaches today.
func TestTargets(t *testing.T) {
	list, methods := Targets(), []Method{Adaptive, Classic, Backoff, Oracle}
	if *targetNames != "" || *targetSeeds == 0 {
		methods = methods[:1]
	}
	cells := make([][]string, len(list))
	t.Run("servers", func(t *testing.T) {
		for i, target := range list {
			if *targetSeeds == 0 && !quick[target.Name] || !regexp.MustCompile(*targetNames).MatchString(target.Name) {
				continue
			}
			cells[i] = make([]string, Oracle+1)
			t.Run(target.Name, func(t *testing.T) {
				t.Parallel()
				for _, m := range methods {
					if m == Oracle && target.Clients > 1 {
						continue // it knows the server and not the others
					}
					cells[i][m] = target.reached(t, m)
				}
			})
		}
	})
	var out strings.Builder
	fmt.Fprintln(&out, "| server | target | adaptive | classic | backoff | oracle |\n| --- | --- | --- | --- | --- | --- |")
	for i, c := range cells {
		if c != nil {
			fmt.Fprintf(&out, "| %s | %v | %s | %s | %s | %s |\n", list[i].Name, list[i].Goal, c[Adaptive], c[Classic], c[Backoff], c[Oracle])
		}
	}
	if *targetSeeds > 0 {
		fmt.Println(out.String())
	}
}

// TestTheDocumentsTest holds what the law reaches in the test of the documents that the project grew from. Chance decides
// about a single run.
func TestTheDocumentsTest(t *testing.T) {
	for share, goal := range map[float64]Goal{.05: {Mean: 3.6}, .2: {Mean: 4.2, Worst: 8}, .35: {Mean: 6, Worst: 40}} {
		target := Target{Scenario: DocumentsNoise(share), Goal: goal, Timed: true}
		if f, worst := target.mean(t, Adaptive, 4*leastTimed); target.missed(f, worst) {
			t.Errorf("%s: %.2f s, the worst %.1f s, want %v", target.Name, f.Seconds, worst, goal)
		}
	}
}

// quick are targets that take a moment and that the law meets today.
var quick = map[string]bool{
	"30 rows, pool 32":                          true,
	"noise 0.05, 20/s, pool 10":                 true,
	"2 clients at 20/s, unknown to each other":  true,
	"a gateway of 4 servers, 20/s together":     true,
	"the account's limit goes from 5/s to 20/s": true,
}

// mean returns the mean of the figures of some seeds, and the longest time that one of them took.
func (target Target) mean(t *testing.T, m Method, seeds int) (f Figures, worst float64) {
	t.Helper()
	list := runs(seeds, func(seed uint64) Figures { return measure(t, target.Scenario, m, seed) })
	for _, f := range list {
		worst = max(worst, f.Seconds)
	}
	return Mean(list), worst
}

// reached returns what a method reaches, as in the table. What misses the goal is bold.
func (target Target) reached(t *testing.T, m Method) string {
	t.Helper()
	seeds := max(1, *targetSeeds)
	if target.Timed && *targetSeeds > 0 {
		seeds = max(leastTimed, seeds)
	}
	f, worst := target.mean(t, m, seeds)
	if math.IsNaN(f.Utilisation) || f.Utilisation > 1.3 && !target.Timed {
		t.Errorf("%v: %+v", m, f)
	}
	if *targetSeeds == 0 && m == Adaptive && target.missed(f, worst) {
		t.Errorf("misses %v: %+v", target.Goal, f)
	}
	cell := fmt.Sprintf("%.3f / %.1f%%", f.Utilisation, 100*f.Waste)
	switch {
	case target.Timed:
		cell = fmt.Sprintf("%.1f / %.1f s, %.1f%%", f.Seconds, worst, 100*f.Waste)
	case target.Clients > 1:
		cell += fmt.Sprintf(" / %.3f", f.Jain)
	}
	if target.missed(f, worst) {
		return "**" + cell + "**"
	}
	return cell
}

// Replicas of one stage know of each other, and what one takes from the others looks random to them. They find out all the
// same that the server refuses at random.
func TestReplicasFindNoise(t *testing.T) {
	for _, target := range crowdTargets() {
		if target.Name != "noise 0.2, no limit, 2 clients, known to each other" {
			continue
		}
		if f, _ := target.mean(t, Adaptive, 2); f.Utilisation < .85 || f.Waste > .25 {
			t.Errorf("%s: utilisation %.3f, waste %.3f, want at least .85 and at most .25", target.Name, f.Utilisation, f.Waste)
		}
		return
	}
	t.Error("no such target")
}
