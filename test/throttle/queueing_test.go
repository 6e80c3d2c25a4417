package throttle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/stagetest"
)

func measureQueueing(t *testing.T, sc *Queueing, m QueueingMethod, seed uint64) (f QueueingFigures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f = RunQueueing(t.Context(), sc, m, seed) })
	return f
}

// meanQueueing returns the mean of the figures of some seeds.
func meanQueueing(t *testing.T, sc *Queueing, m QueueingMethod, seeds int) QueueingFigures {
	t.Helper()
	return combine(runs(seeds, func(seed uint64) QueueingFigures { return measureQueueing(t, sc, m, seed) }), average)
}

// queueingGoal is what the law must reach from learningSec on.
type queueingGoal struct {
	tokens float64 // at least, by those of the one who knows
	p95    float64 // at most, likewise
	guest  float64 // at most, by what the one who knows leaves the guest
}

// queueingGoalOf returns the goal for a server: hardly a wait. One who works at all calls is slower the more they are,
// and there the throughput comes first.
func queueingGoalOf(sc *Queueing) queueingGoal {
	g := queueingGoal{tokens: 0.95, p95: 1.3, guest: 1.3}
	if sc.Slots == 1 { // calls in flight wait for all others, and tell little apart: it takes a while
		g.p95, g.guest = 4, 2.5
	}
	if sc.Silent {
		g.p95, g.guest = 2, 2
	}
	if sc.Speed(1) != sc.Speed(sc.Enough) || sc.Enough != sc.Slots {
		g.p95, g.guest = 2.5, 2.5
	}
	return g
}

func (g queueingGoal) missed(f, knowing QueueingFigures) bool {
	return f.Tokens < g.tokens*knowing.Tokens || f.P95 > g.p95*knowing.P95 || f.Guest > g.guest*knowing.Guest
}

// One run of some of them. TestQueueingTable holds the goals of all.
func TestServersThatQueue(t *testing.T) {
	names := []string{
		"8 slots, conversation, pool 64", "vLLM as measured, up to 512, pool 64", "8 slots, sigma 0.3, pool 64",
		"8 slots, coding, pool 64", "16 slots, sigma 0.3, pool 16", "vLLM as measured, up to 64, pool 64",
	}
	for _, name := range names[:stagetest.Runs(0, 2, len(names))] {
		t.Run(name, func(t *testing.T) {
			servers := QueueingServers()
			i := slices.IndexFunc(servers, func(sc *Queueing) bool { return sc.Name == name })
			f, knowing := measureQueueing(t, servers[i], Learning, 1), measureQueueing(t, servers[i], Knowing, 1)
			if queueingGoalOf(servers[i]).missed(f, knowing) {
				t.Errorf("%+v, by one who knows %+v", f, knowing)
			}
		})
	}
}

// TestQueueingTable prints the table of figures.md and holds its goals. Without -table it runs one server of each
// kind.
func TestQueueingTable(t *testing.T) {
	servers, seeds := QueueingServers(), *tableSeeds
	if seeds == 0 {
		servers, seeds = servers[:1], 1
	}
	var out strings.Builder
	fmt.Fprintln(&out, "| server | throughput | p95 of a call | guest | without: throughput | p95 | guest |")
	fmt.Fprintln(&out, "| --- | --- | --- | --- | --- | --- | --- |")
	for _, sc := range servers {
		knowing := meanQueueing(t, sc, Knowing, seeds)
		fmt.Fprintf(&out, "| %s |", sc.Name)
		for _, m := range []QueueingMethod{Learning, Full} {
			f := meanQueueing(t, sc, m, seeds)
			fmt.Fprintf(&out, " %.3f | %.2f | %.2f |", f.Tokens/knowing.Tokens, f.P95/knowing.P95, f.Guest/knowing.Guest)
			if m == Learning && *tableSeeds > 0 && queueingGoalOf(sc).missed(f, knowing) {
				t.Errorf("%s: %+v, by one who knows %+v", sc.Name, f, knowing)
			}
		}
		fmt.Fprintln(&out)
	}
	if *tableSeeds > 0 {
		fmt.Println(out.String())
	}
}
