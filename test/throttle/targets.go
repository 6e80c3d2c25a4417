package throttle

import (
	"fmt"
	"strings"
	"time"
)

// Target is a server, and what a law should reach there.
type Target struct {
	*Scenario
	Goal

	// Timed says that the job is short, so the seconds that it takes count. They vary much
	// from seed to seed, so the mean and the worst of many runs are measured.
	Timed bool
}

// Goal is what a law should reach. A figure of 0 is not asked for.
type Goal struct {
	Utilisation, Jain float64 // at least
	Mean, Worst       float64 // seconds that a timed job takes, at most
	Waste             float64 // at most
}

// String returns the goal as in the table.
func (g Goal) String() string {
	var parts []string
	add := func(x float64, format string) {
		if x > 0 {
			parts = append(parts, fmt.Sprintf(format, x))
		}
	}
	add(g.Utilisation, "≥ %.2f")
	add(g.Mean, "≤ %.1f s")
	add(g.Worst, "worst ≤ %.0f s")
	add(100*g.Waste, "waste ≤ %.0f%%")
	add(g.Jain, "Jain ≥ %.2f")
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, ", ")
}

// missed reports whether figures miss the goal. Worst is the longest of the runs, in
// seconds.
func (g Goal) missed(f Figures, worst float64) bool {
	over := func(x, most float64) bool { return most > 0 && x > most }
	return f.Utilisation < g.Utilisation || f.Jain < g.Jain ||
		over(f.Seconds, g.Mean) || over(worst, g.Worst) || over(f.Waste, g.Waste)
}

// Targets returns the servers on which a law must tell noise from limits, beside those of
// [Scenarios], [Grid] and [Families].
func Targets() []Target {
	var list []Target
	for _, family := range [][]Target{shortTargets(), boundTargets(0), noiseTargets(), networkTargets(), crowdTargets()} {
		list = append(list, family...)
	}
	return list
}

// shortTargets are jobs that are over before the law has seen much.
func shortTargets() (list []Target) {
	add := func(name string, setUp func(*Scenario, uint64) plan, goal Goal, change ...func(*Scenario)) {
		list = append(list, Target{Scenario: scenario(name, "", setUp, change...), Goal: goal, Timed: true})
	}
	for _, test := range []struct {
		share float64
		goal  Goal
	}{
		{.20, Goal{Mean: 4.0, Worst: 8}},
		{.05, Goal{Mean: 3.6}},
		{.35, Goal{Mean: 5.5}},
	} {
		list = append(list, Target{Scenario: DocumentsNoise(test.share), Goal: test.goal, Timed: true})
	}
	add("600 rows of that, noise 0.2", noisy(.2), Goal{Mean: 19, Worst: 25}, documents, rows(600))
	for _, pool := range []int{10, 32, 128} {
		size := poolSize(pool)
		add(fmt.Sprintf("100 rows at 20/s, pool %d", pool), constant(20, 5), unlessPool(pool, 10, Goal{Mean: 6.6, Waste: .12}), rows(100), size)
		add(fmt.Sprintf("300 rows at 100/s, pool %d", pool), constant(100, 5), unlessPool(pool, 32, Goal{Mean: 8.0, Waste: .06}), rows(300), size)
		add(fmt.Sprintf("30 rows, pool %d", pool), noisy(0), Goal{}, rows(30), size)
	}
	return list
}

// unlessPool returns no goal where the pool, not the law, is what makes a job take longer.
func unlessPool(pool, small int, goal Goal) Goal {
	if pool <= small {
		return Goal{}
	}
	return goal
}

// noiseTargets refuse a share of all calls at random, with a limit behind that or without.
func noiseTargets() (list []Target) {
	for _, share := range []float64{.05, .1, .2, .35, .5} {
		without, slow, fast := .94, .90, .85
		if share > .2 {
			without, slow, fast = .85, .85, .85
		}
		add := func(limit string, pool int, setUp func(*Scenario, uint64) plan, least float64, change ...func(*Scenario)) {
			sc := scenario(fmt.Sprintf("noise %g, %s, pool %d", share, limit, pool), "", setUp, poolSize(pool), lasting(100, 20))
			for _, c := range change {
				c(sc)
			}
			list = append(list, Target{Scenario: sc, Goal: Goal{Utilisation: least}})
		}
		for _, pool := range []int{10, 32, 128} {
			add("no limit", pool, noisy(share), without, lasting(100, float64(pool)))
			add("20/s", pool, refusing(share, constant(20, 5)), slow)
			// Calls of 200 ms, so that a pool of 128 is no limit.
			add("200/s", pool, refusing(share, constant(200, 10)), fast, calls(200*time.Millisecond, .3), lasting(60, 200))
		}
		list = append(list, boundTargets(share)...)
	}
	return list
}

// boundTargets have limits that a small pool reaches, behind noise or without.
func boundTargets(share float64) (list []Target) {
	least := 0.9
	if share > .2 {
		least = .85
	}
	for _, pool := range []int{10, 16} {
		slow := scenario(fmt.Sprintf("noise %g, 5/s, pool %d", share, pool), "",
			refusing(share, constant(5, 5)), poolSize(pool), lasting(200, 5))
		fast := scenario(fmt.Sprintf("noise %g, 20/s, calls of 200 ms, pool %d", share, pool), "",
			refusing(share, constant(20, 5)), poolSize(pool), calls(200*time.Millisecond, .3), lasting(100, 20))
		for _, sc := range []*Scenario{slow, fast} {
			list = append(list, Target{Scenario: sc, Goal: Goal{Utilisation: least}})
		}
	}
	return list
}

// networkTargets have limits that a network blurs, that an account changes, or that
// several servers have each by itself.
func networkTargets() (list []Target) {
	add := func(name string, setUp func(*Scenario, uint64) plan, change ...func(*Scenario)) {
		list = append(list, Target{Scenario: scenario(name, "", setUp, append(change, lasting(300, 20))...)})
	}
	jitter := late(20 * time.Millisecond)
	add("S1, calls up to 20 ms late", constant(20, 5), jitter)
	add("S2, calls up to 20 ms late", alternating, jitter)
	add("noise 0.2, calls up to 20 ms late", noisy(.2), jitter)
	add("noise 0.2, 20/s, calls up to 20 ms late", refusing(.2, constant(20, 5)), jitter)
	changed := func(from, to float64) func(*Scenario, uint64) plan {
		return func(_ *Scenario, seed uint64) plan {
			at := 100 + 4*chance(seed).Float64()
			return plan{server: newBucket(schedule{{0, from}, {at, to}}, 5), rises: []step{{at, max(from, to)}}}
		}
	}
	add("the account's limit goes from 5/s to 20/s", changed(5, 20))
	add("the account's limit goes from 20/s to 5/s", changed(20, 5))
	for _, n := range []int{2, 4, 8} {
		add(fmt.Sprintf("a gateway of %d servers, 20/s together", n), func(_ *Scenario, seed uint64) plan {
			g := &gateway{seed: seed}
			for range n {
				g.backends = append(g.backends, newBucket(schedule{{0, 20 / float64(n)}}, 5))
			}
			return plan{server: g}
		})
	}
	return list
}

// crowdTargets are clients of one server, each with a law of its own.
func crowdTargets() (list []Target) {
	add := func(n int, rate float64, jobs int, of string, goal Goal, change ...func(*Scenario)) {
		sc := scenario(fmt.Sprintf("%d clients at %g/s, %s", n, rate, of), "", constant(rate, max(5, rate/20)),
			append(change, clients(n), rows(jobs))...)
		list = append(list, Target{Scenario: sc, Goal: goal})
	}
	for _, n := range []int{2, 4, 8, 16, 64} {
		fair := Goal{Jain: .95}
		if n == 64 {
			fair = Goal{}
		}
		add(n, 20, 6000/n, "unknown to each other", fair)
		add(n, 20, 6000/n, "known to each other", Goal{}, known)
	}
	for _, n := range []int{2, 16} {
		list = append(list, Target{Scenario: scenario(fmt.Sprintf("noise 0.2, no limit, %d clients, known to each other", n), "",
			noisy(.2), known, clients(n), poolSize(32), lasting(100, 20))})
	}
	add(64, 200, 1000, "unknown to each other", Goal{Jain: .6, Waste: .2})
	add(64, 200, 1000, "known to each other", Goal{Jain: .97, Waste: .13}, known)
	return list
}

// documents makes a job that of the documents which the project grew from: 100 rows, calls
// of 50 to 500 ms, and a pool of 10.
func documents(sc *Scenario) {
	sc.Rows, sc.Pool = 100, 10
	sc.Shortest, sc.Longest = 50*time.Millisecond, 500*time.Millisecond
}

// DocumentsNoise is the documents' own test: their job at a server that refuses a share of
// all calls at random.
func DocumentsNoise(share float64) *Scenario {
	return scenario(fmt.Sprintf("100 rows, calls of 50-500 ms, pool 10, noise %g", share), "", noisy(share), documents)
}

// DocumentsLimit is their job at a server that admits so many calls a second, and so many
// at once.
func DocumentsLimit(perSec, burst float64) *Scenario {
	return scenario(fmt.Sprintf("100 rows, calls of 50-500 ms, pool 10, %g/s", perSec), "", constant(perSec, burst), documents)
}

// Attempt returns what chance does to an attempt at a row of a scenario, from 1, in the run
// with a seed: how late it is at the server, whether a server that refuses a share at
// random refuses it, and how long it takes if it is accepted.
func (sc *Scenario) Attempt(seed uint64, row, attempt int, share float64) (late time.Duration, refused bool, takes time.Duration) {
	id := callID{row: row, attempt: attempt}
	refused = !(&random{share: share, seed: seed}).admit(0, id)
	return sc.late(seed, id), refused, time.Duration(1e9 * sc.callSec(id.rand(seed, 2)))
}

// late returns how late a call is at the server.
func (sc *Scenario) late(seed uint64, id callID) time.Duration {
	return time.Duration(float64(sc.Jitter) * id.rand(seed, 8).Float64())
}
