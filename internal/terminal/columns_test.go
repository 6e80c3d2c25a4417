package terminal

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"
	"pgregory.net/rapid"
)

// TestWrapKeepsTheTextWithinItsColumn wraps any text, wide characters and long words included.
func TestWrapKeepsTheTextWithinItsColumn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("ab  é語🙂\n-"))).Draw(rt, "text")
		width := rapid.IntRange(24, 30).Draw(rt, "width")
		lines := Wrap(text, width)
		for _, line := range lines {
			if runewidth.StringWidth(line) > width {
				rt.Fatalf("%q is wider than %d", line, width)
			}
		}
		plain := strings.NewReplacer(" ", "", "\n", "")
		if got := plain.Replace(strings.Join(lines, "")); got != plain.Replace(text) {
			rt.Fatalf("got %q, want the characters of %q", lines, text)
		}
	})
	if got, want := fmt.Sprintf("%q", Wrap("one two three\n\tx", 9)), `["one two" "three" "    x"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHugeTextsAreWrapped(t *testing.T) {
	text := strings.Repeat("a語", 1<<18) // in quadratic time it would take longer than a test may
	if lines := Wrap(text, 58); strings.Join(lines, "") != text {
		t.Errorf("%d lines, another text", len(lines))
	}
}
