package throttle

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// TestFallbacks holds what a fallback of half the first server's rate must gain in a brown-out, and that in normal
// operation at a limit no row goes there. With -table it prints the table of docs/throttle.md.
func TestFallbacks(t *testing.T) {
	seeds := max(1, *tableSeeds)
	var out strings.Builder
	for _, sc := range Fallbacks() {
		brownout := strings.HasPrefix(sc.Name, "brown-out")
		switch {
		case *tableSeeds > 0:
		case sc.Rows > 20000:
			continue
		case !brownout:
			sc.Rows = min(sc.Rows, 3000)
		}
		runs := make([]FallbackFigures, seeds)
		for i := range runs {
			synctest.Test(t, func(t *testing.T) { runs[i] = RunFallback(t.Context(), sc, uint64(seedsFrom+i)) })
		}
		f := combine(runs, average)
		fmt.Fprintf(&out, "| %s | %.1f/s | %.1f/s | %.2f | %.1f%% | %.1f%% |\n", sc.Name, f.Alone, f.PerSec, f.PerSec/f.Alone, 100*f.Share, 100*f.Waste)
		if brownout && f.PerSec < 1.4*f.Alone {
			t.Errorf("%s: %.1f/s with the fallback, %.1f/s without: want 1.4 times as many", sc.Name, f.PerSec, f.Alone)
		}
		if !brownout && sc.Name != quotaWithFallback && f.Share > 0.001 {
			t.Errorf("%s: %.1f%% went to the fallback in normal operation", sc.Name, 100*f.Share)
		}
	}
	if *tableSeeds > 0 {
		fmt.Printf("\nA fallback of 10/s\n\n| server | alone | both | gain | by the fallback | waste |\n| --- | --- | --- | --- | --- | --- |\n%s", out.String())
	}
}
