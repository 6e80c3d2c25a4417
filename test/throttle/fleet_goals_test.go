package throttle

import (
	"math"
	"testing"

	"github.com/llm-stage/stage/aimd/fleet"
)

// fleetGoal is what a fleet must reach. Zero: no goal.
type fleetGoal struct {
	utilisation, waste, jain float64 // at least, at most, at least
	over                     float64 // at most
	heal, replace, regain    float64 // at most
	killed                   float64 // at least
	messages                 float64 // at most, or 2.5
}

func (g fleetGoal) check(t *testing.T, f FleetFigures) {
	t.Helper()
	check := func(name string, got, least, most float64) {
		t.Helper()
		if math.IsNaN(got) || got < least || most > 0 && got > most {
			t.Errorf("%s is %.3f, want %.3f to %.3f: %+v", name, got, least, most, f)
		}
	}
	check("utilisation", f.Utilisation, g.utilisation, 0)
	check("waste", f.Waste, 0, g.waste)
	check("Jain's index", f.Jain, g.jain, 0)
	check("time over twice the limit", f.Over, 0, max(g.over, 2))
	if g.heal > 0 {
		check("time until one leads again", f.Heal, 0, g.heal)
	}
	if g.replace > 0 {
		check("time until another leads", f.Replace, 0, g.replace)
		check("use after a leader's death", f.Killed, g.killed, 0)
	}
	if g.regain > 0 {
		check("time until the others use what some leave", f.Regain, 0, g.regain)
	}
	check("messages a second and member", f.Messages, 0, max(g.messages, 2.5))
}

// Many processes with one law are as good as one, whatever happens to them and to their messages. These are small, with
// room for chance; -fleets runs the large ones.
func TestFleetsUseOneLimitTogether(t *testing.T) {
	steady := constant(20, 5)
	bad := lossy(0.05, 0.02)
	weights := func(c int) float64 { return []float64{1, 2, 4}[c%3] }
	for _, test := range []struct {
		fleet *Fleet
		goal  fleetGoal
	}{
		{newFleet("messages lost and doubled", 16, steady, seconds(120), bad), fleetGoal{utilisation: 0.94, waste: 0.035, jain: 0.98}},
		{newFleet("200/s", 64, constant(200, 10), seconds(60), bad), fleetGoal{utilisation: 0.9, waste: 0.02, jain: 0.98}},
		{newFleet("weights", 12, steady, seconds(120), weighted(weights)), fleetGoal{utilisation: 0.94, waste: 0.04, jain: 0.98}},
		{newFleet("a limit that falls and rises", 16, dropping(20, 5), seconds(200), bad), fleetGoal{utilisation: 0.92, waste: 0.06, jain: 0.98}},
		{newFleet("an outage", 16, broken(20, 5, 30), seconds(240), bad), fleetGoal{utilisation: 0.93, waste: 0.06, jain: 0.98}},
		{newFleet("a fifth refused at random", 16, refusing(0.2, constant(200, 10)), seconds(200), bad, pools(64)), fleetGoal{utilisation: 0.7, waste: 0.3, jain: 0.98, messages: 5}},
		{newFleet("leaders killed", 16, steady, seconds(100), bad, killing(30, 20, 3)), fleetGoal{utilisation: 0.93, waste: 0.04, jain: 0.97, replace: 2, killed: 0.85}},
		{newFleet("a leader suspended", 16, steady, seconds(90), bad, suspending(30, 50)), fleetGoal{utilisation: 0.93, waste: 0.04, jain: 0.97, heal: 2}},
		{newFleet("a partition", 16, steady, seconds(100), bad, split(30, 60)), fleetGoal{utilisation: 0.93, waste: 0.06, jain: 0.94, heal: 2}},
		{newFleet("no messages for a while", 16, steady, seconds(100), silent(40, 70)), fleetGoal{utilisation: 0.88, waste: 0.12, jain: 0.95, heal: 2}},
		{newFleet("joining, leaving, crashing", 24, steady, seconds(120), bad, joining(20, 2, span(16, 24)...),
			ends(50, 3, true, span(0, 4)...), ends(70, 3, false, span(4, 8)...)), fleetGoal{utilisation: 0.93, waste: 0.05, jain: 0.97}},
		{newFleet("some rest", 8, steady, seconds(100), resting(40, 70)), fleetGoal{utilisation: 0.93, waste: 0.05, jain: 0.97, regain: 1.5}},
		{newFleet("lies", 16, steady, seconds(90), forging(20, 60, 0.5)), fleetGoal{utilisation: 0.85, waste: 0.1, jain: 0.95, heal: 3}},
		{newFleet("a limit that is set", 16, steady, seconds(60), bad, limited(fleet.Limits{RPM: 1140})), fleetGoal{utilisation: 0.88, waste: 0.005, jain: 0.98}},
		{newFleet("a limit in flight that is set", 8, together(40), seconds(60), limited(fleet.Limits{Concurrency: 50})), fleetGoal{utilisation: 0.6, waste: 0.005, jain: 0.97}},
	} {
		if testing.Short() && test.fleet.Name != "joining, leaving, crashing" {
			continue // all of the law has a part in this one; the others are in aimd/fleet, too, without the pool
		}
		t.Run(test.fleet.Name, func(t *testing.T) {
			test.goal.check(t, measureFleet(t, test.fleet, Shared, 1))
		})
	}
}

// What a shared budget is for: each by itself wastes many more calls.
func TestFleetsWasteLessThanEachByItself(t *testing.T) {
	together := measureFleet(t, newFleet("", 16, constant(20, 5), seconds(60)), Shared, 1)
	apart := measureFleet(t, newFleet("", 16, constant(20, 5), seconds(60)), Adaptive, 1)
	if together.Waste > apart.Waste/3 || together.Jain < apart.Jain {
		t.Errorf("together %+v, each by itself %+v", together, apart)
	}
}
