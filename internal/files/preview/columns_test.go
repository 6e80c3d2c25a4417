package preview

import (
	"bytes"
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
		width := rapid.IntRange(tryColumnMin, 30).Draw(rt, "width")
		lines := wrap(text, width)
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
	if got, want := fmt.Sprintf("%q", wrap("one two three\n\tx", 9)), `["one two" "three" "    x"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPromptsSideBySideFitTheTerminal(t *testing.T) {
	row := triedRow{Line: 7, Prompts: []triedPrompt{
		{Template: "a.jinja", Prompt: "one two three four five six seven eight\n"},
		{Template: "b.jinja", Prompt: "語 \x1b[31mred"},
		{Template: "c.jinja", Error: "undefined: row.x"},
	}}
	for width, want := range map[int]string{
		90: "--- line 7\n" +
			"a.jinja                      │ b.jinja                      │ c.jinja\n" +
			strings.Repeat("─", 28) + " │ " + strings.Repeat("─", 28) + " │ " + strings.Repeat("─", 28) + "\n" +
			"one two three four five six  │ 語 \uFFFD[31mred                  │ error: undefined: row.x\n" +
			"seven eight                  │                              │\n",
		60: "--- line 7\n[a.jinja]\none two three four five six seven eight\n[b.jinja]\n語 \uFFFD[31mred\n[c.jinja]\nerror: undefined: row.x\n",
	} {
		var b bytes.Buffer
		if err := row.write(&b, width); err != nil || b.String() != want {
			t.Errorf("at %d columns: got %v\n%s\nwant\n%s", width, err, &b, want)
		}
	}
	row.Prompts = []triedPrompt{{Template: "a", Prompt: "x"}, {Template: "b", Prompt: "x"}}
	var b bytes.Buffer
	if err := row.write(&b, 80); err != nil || b.String() != "--- line 7\n(the same from all templates)\nx\n" {
		t.Errorf("equal prompts: %v\n%s", err, &b)
	}
}

func TestHugePromptsAreWrapped(t *testing.T) {
	text := strings.Repeat("a語", 1<<18) // in quadratic time it would take longer than a test may
	if lines := wrap(text, 58); strings.Join(lines, "") != text {
		t.Errorf("%d lines, another text", len(lines))
	}
}
