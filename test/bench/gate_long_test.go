//go:build long

// The tests of this package are linked with the whole program and a NATS server, which takes longer than everything else
// in them. They matter where the speed is measured, which is at night, too.

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestAFigureHasFallenWhenThreeRoundsFindItWorseByMoreThanTheTolerance(t *testing.T) {
	more, less := gateFigure{name: "more"}, gateFigure{name: "less", less: true}
	for _, c := range []struct {
		name          string
		f             gateFigure
		was           float64
		rounds        []float64
		suspect, fell bool
	}{
		{"as it was", more, .95, []float64{.95}, false, false},
		{"better", more, .95, []float64{1.9}, false, false},
		{"a little worse", more, 1, []float64{.86}, false, false},
		{"worse in one round", more, .95, []float64{.78}, true, false},
		{"worse in two rounds", more, .95, []float64{.78, .76}, true, false},
		{"worse in three rounds", more, .95, []float64{.78, .76, .80}, true, true},
		{"once not worse", more, .95, []float64{.78, .90, .76}, false, false},
		{"less is better, less", less, 3.1, []float64{1.5, 1.5, 1.5}, false, false},
		{"less is better, more", less, 3.1, []float64{3.7, 3.8, 3.6}, true, true},
		{"less is better, a little more", less, 3.1, []float64{3.5}, false, false},
		{"never recorded", more, 0, []float64{.1, .1, .1}, false, false},
		{"not measured", more, .95, nil, false, false},
	} {
		if got := c.f.suspect(c.was, c.rounds); got != c.suspect {
			t.Errorf("%s: suspect %t, want %t", c.name, got, c.suspect)
		}
		if got := c.f.fell(c.was, c.rounds); got != c.fell {
			t.Errorf("%s: fell %t, want %t", c.name, got, c.fell)
		}
	}
}

func TestTheGatePrintsWhatIsRecordedBesideWhatIs(t *testing.T) {
	figures := []gateFigure{{name: "rate"}, {name: "time", less: true}, {name: "cores", less: true}, {name: "new"}}
	was := gateRecord{Commit: "1ba1210c", Ratios: map[string]float64{"rate": .95, "time": 2, "cores": 3}}
	var out bytes.Buffer
	fell := printGate(&out, figures, was, map[string][]float64{"rate": {.93}, "time": {2.5, 2.4, 2.6}, "cores": {4, 3, 3.1}, "new": {1}})
	want := `
| | now | recorded at 1ba1210c | worse by | |
| --- | --- | --- | --- | --- |
| rate | 0.93 | 0.95 | 2% |  |
| time | 2.50, 2.40, 2.60 | 2.00 | 25% | fell |
| cores | 4.00, 3.00, 3.10 | 3.00 | 3% | not in all rounds |
| new | 1.00 |  |  | not recorded |
`
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if !slices.Equal(fell, []string{"time"}) {
		t.Errorf("fell: %s, want the time alone", strings.Join(fell, ", "))
	}
}
