package value

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// An integer too large to compute with costs no work, so its digits must not be read, not
// even to validate them.
func TestTooLargeIntegersAreNotParsed(t *testing.T) {
	for digits, want := range map[string]float64{"9" + strings.Repeat("x", MaxDigits+1): math.Inf(1), "-9" + strings.Repeat("x", MaxDigits): math.Inf(-1)} {
		if n, ok := number(json.Number(digits)); !ok || n.isInt || n.f != want {
			t.Errorf("%.3s: got %+v, want %v", digits, n, want)
		}
	}
}

func TestWordsAreCountedWithoutKeepingThem(t *testing.T) {
	text := strings.Repeat("a ", 10_000)
	if n := testing.AllocsPerRun(10, func() { countWords(text) }); n > 3 {
		t.Errorf("%v allocations", n)
	}
}
