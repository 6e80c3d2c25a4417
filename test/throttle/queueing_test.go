package throttle

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

func measureQueueing(t *testing.T, sc *Queueing, m QueueingMethod, seed uint64) (f QueueingFigures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f = RunQueueing(t.Context(), sc, m, seed) })
	return f
}

// meanQueueing returns the mean of the figures of some seeds.
func meanQueueing(t *testing.T, sc *Queueing, m QueueingMethod, seeds int) QueueingFigures {
	t.Helper()
	runs := make([]QueueingFigures, seeds)
	for i := range runs {
		runs[i] = measureQueueing(t, sc, m, uint64(seedsFrom+i))
	}
	return combine(runs, func(list []float64) (mean float64) {
		for _, x := range list {
			mean += x / float64(len(list))
		}
		return mean
	})
}

// TestQueueingTable prints the table of docs/throttle.md and holds its goals. Without -table it runs one server of each
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
			fmt.Fprintf(&out, " %.3f | %.2f | %.2f |", f.Tokens/knowing.Tokens, f.P95/knowing.P95, f.Guest)
		}
		fmt.Fprintf(&out, " %.2f\n", knowing.Guest)
	}
	fmt.Println(out.String())
}
