package throttle

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
)

var crowdSeeds = flag.Int("crowd", 0, "run the table of figures.md with so many seeds")

// TestCrowd prints what many replicas make of one provider's limit, beside one pool that has it all: what a budget shared
// by all replicas could gain at most. Without -crowd it runs the smallest, to see that it works.
func TestCrowd(t *testing.T) {
	type crowd struct {
		clients int
		rate    float64
		rows    int // each
	}
	crowds := []crowd{
		{1, 20, 12000},
		{4, 20, 3000},
		{16, 20, 750},
		{64, 20, 190},
		{1, 200, 60000},
		{4, 200, 15000},
		{16, 200, 6000},
		{64, 200, 1900},
		{1000, 200, 120},
		{1, 1000, 100000},
		{64, 1000, 6000},
		{1000, 1000, 300},
	}
	seeds := *crowdSeeds
	if seeds == 0 {
		crowds, seeds = []crowd{{4, 20, 100}}, 1
	}
	var out strings.Builder
	fmt.Fprintln(&out, "| replicas | limit | each | utilisation | waste | Jain's index | of one stage: utilisation | waste | Jain's index |")
	fmt.Fprintln(&out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, c := range crowds {
		size := 32
		if c.clients == 1 {
			size = int(2 * 1.3 * c.rate) // so that the pool is not the limit
		}
		sc := scenario("", "", constant(c.rate, max(5, c.rate/20)), clients(c.clients), rows(c.rows), poolSize(size))
		fmt.Fprintf(&out, "| %d | %g/s | %g/s |", c.clients, c.rate, math.Round(100*c.rate/float64(c.clients))/100)
		for _, sc.Known = range []bool{false, true} {
			if sc.Known && c.clients == 1 {
				fmt.Fprint(&out, " | | |")
				continue
			}
			f := mean(t, sc, Adaptive, seeds)
			fmt.Fprintf(&out, " %.3f | %.1f%% | %.3f |", f.Utilisation, 100*f.Waste, f.Jain)
			if f.Utilisation < 0.8 || f.Utilisation > 1.1 {
				t.Errorf("%d replicas at %g/s, known to each other: %v: utilisation %.3f", c.clients, c.rate, sc.Known, f.Utilisation)
			}
		}
		fmt.Fprintln(&out)
	}
	if *crowdSeeds > 0 {
		fmt.Println(out.String())
	}
}
