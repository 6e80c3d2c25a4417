package throttle

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

var nightRows = flag.Int("night", 0, "run the documents' job with so many rows, 100000 of them in the README, and print how long it takes")

// night are the ways to do the documents' job that README.md and docs/throttle.md compare.
var night = []struct {
	name   string
	method Method
	slots  int
}{
	{"one call at a time", Adaptive, 1},
	{"backoff of each worker, 32 workers", Backoff, 32},
	{"classic, pool of 32", Classic, 32},
	{"adaptive, pool of 32", Adaptive, 32},
	{"known optimum, pool of 32", Oracle, 32},
}

// TestTheDocumentsNight prints how long the documents' job takes, as in README.md. Without
// -night it runs a short one, to see that it works.
func TestTheDocumentsNight(t *testing.T) {
	rows, out, took := *nightRows, strings.Builder{}, map[string]float64{}
	if rows == 0 {
		rows = 3000
	}
	for _, way := range night {
		f := measure(t, Night(rows, way.slots), way.method, 1)
		took[way.name] = f.Seconds
		fmt.Fprintf(&out, "| %s | %s | %.1f | %.1f%% |\n", way.name, hours(f.Seconds), took["one call at a time"]/f.Seconds, 100*f.Waste)
	}
	t.Logf("%d rows, calls of 1.2 s on average, 20/s and 5/s in turn\n\n| | time | speed-up | refused |\n| --- | --- | --- | --- |\n%s", rows, out.String())
	if serial := 1.2 * float64(rows); math.Abs(took["one call at a time"]/serial-1) > .02 {
		t.Errorf("one call at a time takes %.0f s, want about %.0f s", took["one call at a time"], serial)
	}
	if got, best := took["adaptive, pool of 32"], took["known optimum, pool of 32"]; got > 1.06*best {
		t.Errorf("the pool takes %.0f s, and the optimum is %.0f s", got, best)
	}
}

// hours is a time as in "2 h 15 min".
func hours(seconds float64) string {
	minutes := int(math.Round(time.Duration(seconds * 1e9).Minutes()))
	if minutes < 60 {
		return fmt.Sprintf("%d min", minutes)
	}
	return fmt.Sprintf("%d h %d min", minutes/60, minutes%60)
}
