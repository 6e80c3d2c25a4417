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
			fmt.Printf("| %s | %.3f | %.1f%% | %.3f | %.1f | %s | %s | %s | %s | %.2f | %.0f | %.3f | %.1f | %.1fs\n", Fleets(rate)[i].Name, f.Utilisation, 100*f.Waste, f.Jain, f.Over,
				figure(f.Heal, "%.1f"), figure(f.Replace, "%.1f"), figure(f.Killed, "%.2f"), figure(f.Regain, "%.1f"),
				f.Messages, f.Leaders, f.Alone, f.RowP99, time.Since(began).Seconds())
		}
	}
}
