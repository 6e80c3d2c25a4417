package throttle

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/golden"
)

// runs returns the figures of n runs, of the seeds from seedsFrom on.
func runs[F any](n int, measure func(seed uint64) F) []F {
	figures := make([]F, n)
	for i := range figures {
		figures[i] = measure(*seedsFrom + uint64(i))
	}
	return figures
}

func measure(t *testing.T, sc *Scenario, m Method, seed uint64) (f Figures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f = Run(t.Context(), sc, m, seed) })
	return f
}

// find returns a copy of the scenario of that name, with so many rows.
func find(t *testing.T, name string, rows int) *Scenario {
	t.Helper()
	for _, sc := range slices.Concat(Scenarios(), Grid(), Families()) {
		if sc.Name == name {
			sc.Rows = min(sc.Rows, rows)
			return sc
		}
	}
	t.Fatalf("no scenario %q", name)
	return nil
}

// The pictures in docs/throttle.md show what the law does and believes today.
func TestPicturesAreUpToDate(t *testing.T) {
	var tr Trace
	synctest.Test(t, func(t *testing.T) { tr = RunTraced(t.Context(), find(t, "S2", 3000), 1) })
	golden.Check(t, "../../docs/throttle.svg", tr.SVG(50, 140, 120, 130))
	synctest.Test(t, func(t *testing.T) { tr = RunTraced(t.Context(), Believed(), 1) })
	golden.Check(t, "../../docs/belief.svg", tr.BeliefSVG(0, 200))
}
