package throttle

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	fleetSeeds = flag.Int("fleets", 0, "run the fleets of docs/scale.md with so many seeds")
	fleetNames = flag.String("only", "", "only the fleets whose name matches this expression")
	fleetRates = flag.String("rates", "20,200", "limits of the server, calls per second")
)

func measureFleet(t *testing.T, f *Fleet, m Method, seed uint64) (fig FleetFigures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fig = RunFleet(t.Context(), f, m, seed) })
	return fig
}

func TestFleetTable(t *testing.T) {
	if *fleetSeeds == 0 {
		t.Skip("-fleets runs it")
	}
	only := regexp.MustCompile(*fleetNames)
	for _, r := range strings.Split(*fleetRates, ",") {
		var rate float64
		fmt.Sscan(r, &rate)
		fmt.Printf("\n| fleet at %g/s | utilisation | waste | Jain | over | heal | replace | killed | regain | messages | leaders | alone | p99 |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n", rate)
		for i := range Fleets(rate) {
			if !only.MatchString(Fleets(rate)[i].Name) {
				continue
			}
			var runs []FleetFigures
			began := time.Now()
			for seed := range *fleetSeeds {
				runs = append(runs, measureFleet(t, Fleets(rate)[i], Shared, uint64(seedsFrom+seed)))
			}
			f := combine(runs, average)
			fmt.Printf("| %s | %.3f | %.1f%% | %.3f | %s | %s | %s | %s | %s | %.2f | %.0f | %.3f | %.1f | %.1fs\n", Fleets(rate)[i].Name, f.Utilisation, 100*f.Waste, f.Jain, figure(f.Over, "%.1f"),
				figure(f.Heal, "%.1f"), figure(f.Replace, "%.1f"), figure(f.Killed, "%.2f"), figure(f.Regain, "%.1f"),
				f.Messages, f.Leaders, f.Alone, f.RowP99, time.Since(began).Seconds())
		}
	}
}

// TestCrowdThatShares prints the second table of docs/scale.md: the crowds of TestCrowd, with a shared budget.
func TestCrowdThatShares(t *testing.T) {
	if *crowdSeeds == 0 {
		t.Skip("-crowd runs it")
	}
	fmt.Println("| processes | limit | utilisation | waste | Jain's index |\n| --- | --- | --- | --- | --- |")
	for _, c := range []struct {
		clients int
		rate    float64
		rows    int // each
	}{
		{4, 20, 3000},
		{16, 20, 750},
		{64, 20, 190},
		{4, 200, 15000},
		{16, 200, 6000},
		{64, 200, 1900},
		{64, 1000, 6000},
		{1000, 200, 40},
		{1000, 1000, 200},
	} {
		sc := scenario("", "", constant(c.rate, max(5, c.rate/20)), clients(c.clients), rows(c.rows), poolSize(32))
		f := mean(t, sc, Shared, *crowdSeeds)
		fmt.Printf("| %d | %g/s | %.3f | %.1f%% | %.3f |\n", c.clients, c.rate, f.Utilisation, 100*f.Waste, f.Jain)
		if f.Utilisation < 0.9 || f.Waste > 0.06 || f.Jain < 0.97 {
			t.Errorf("%d processes at %g/s: %+v", c.clients, c.rate, f)
		}
	}
}
