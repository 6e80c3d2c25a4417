package throttle

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	fleetSeeds = flag.Int("fleets", 0, "run the fleets of figures.md with so many seeds")
	fleetNames = flag.String("only", "", "only the fleets whose name matches this expression")
	fleetRates = flag.String("rates", "20,200", "limits of the server, calls per second")
)

func measureFleet(t *testing.T, f *Fleet, m Method, seed uint64) (fig FleetFigures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fig = RunFleet(t.Context(), f, m, seed) })
	return fig
}

// TestFleetTable prints the tables of fleets in figures.md. Without -fleets it runs the smallest, to see that it works.
func TestFleetTable(t *testing.T) {
	seeds, names, rates := *fleetSeeds, *fleetNames, *fleetRates
	if seeds == 0 {
		seeds, names, rates = 1, "^4 members$", "20"
	}
	only := regexp.MustCompile(names)
	for text := range strings.SplitSeq(rates, ",") {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("-rates: %v", err)
		}
		fmt.Printf("\n**%g/s**\n\n| fleet | utilisation | waste | Jain's index | over | one leads | replaced | used | regained | messages |\n"+
			"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", rate)
		for i, fleet := range Fleets(rate) {
			if !only.MatchString(fleet.Name) {
				continue
			}
			f := combine(runs(seeds, func(seed uint64) FleetFigures {
				f := Fleets(rate)[i] // one that is new
				if *fleetSeeds == 0 {
					f.Seconds = 30
				}
				return measureFleet(t, f, Shared, seed)
			}), average)
			fmt.Printf("| %s | %.3f | %.1f%% | %.3f | %s | %s | %s | %s | %s | %.2f |\n", fleet.Name, f.Utilisation, 100*f.Waste, f.Jain,
				figure(f.Over, "%.1f s"), figure(f.Heal, "%.1f s"), figure(f.Replace, "%.1f s"), figure(f.Killed, "%.2f"), figure(f.Regain, "%.1f s"), f.Messages)
		}
	}
}

// TestCrowdThatShares prints the second table of figures.md: the crowds of TestCrowd, with a shared budget. Without
// -crowd it runs a small one.
func TestCrowdThatShares(t *testing.T) {
	type crowd struct {
		clients int
		rate    float64
		rows    int // each
	}
	crowds, seeds := []crowd{
		{4, 20, 3000},
		{16, 20, 750},
		{64, 20, 190},
		{4, 200, 15000},
		{16, 200, 6000},
		{64, 200, 1900},
		{64, 1000, 6000},
		{1000, 200, 40},
		{1000, 1000, 200},
	}, *crowdSeeds
	if seeds == 0 {
		crowds, seeds = []crowd{{4, 20, 500}}, 1
	}
	fmt.Println("| processes | limit | utilisation | waste | Jain's index |\n| --- | --- | --- | --- | --- |")
	for _, c := range crowds {
		sc := scenario("", "", constant(c.rate, max(5, c.rate/20)), clients(c.clients), rows(c.rows), poolSize(32))
		f := mean(t, sc, Shared, seeds)
		fmt.Printf("| %d | %g/s | %.3f | %.1f%% | %.3f |\n", c.clients, c.rate, f.Utilisation, 100*f.Waste, f.Jain)
		if f.Utilisation < 0.9 || f.Waste > 0.06 || f.Jain < 0.97 {
			t.Errorf("%d processes at %g/s: %+v", c.clients, c.rate, f)
		}
	}
}
