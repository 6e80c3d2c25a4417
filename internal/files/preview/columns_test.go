package preview

import (
	"bytes"
	"strings"
	"testing"
)

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
