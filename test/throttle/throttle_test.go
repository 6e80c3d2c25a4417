package throttle

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"
)

var update = flag.Bool("update", false, "draw docs/throttle.svg anew")

func measure(t *testing.T, sc *Scenario, m Method, seed uint64) (f Figures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f = Run(t.Context(), sc, m, seed) })
	return f
}

// find returns a copy of the scenario of that name, with so many rows.
func find(t *testing.T, name string, rows int) *Scenario {
	t.Helper()
	for _, sc := range append(Scenarios(), Grid()...) {
		if sc.Name == name {
			sc.Rows = min(sc.Rows, rows)
			return sc
		}
	}
	t.Fatalf("no scenario %q", name)
	return nil
}

// The picture in docs/throttle.md shows what the law does today.
func TestPictureIsUpToDate(t *testing.T) {
	const file = "../../docs/throttle.svg"
	var tr Trace
	synctest.Test(t, func(t *testing.T) { tr = RunTraced(t.Context(), find(t, "S2", 3000), 1) })
	svg := tr.SVG(50, 140, 120, 130)
	if *update {
		if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(old) != svg {
		t.Errorf("%s is out of date: run this test with -update", file)
	}
}
