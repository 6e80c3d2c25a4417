package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

func TestFailuresAreGroupedAndBounded(t *testing.T) {
	var f failures
	for line := range int64(100_000) {
		f.add(line, fmt.Errorf("column %d: %s", line, strings.Repeat("x", int(line%200))))
	}
	var b bytes.Buffer
	f.write(&b)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != failureGroups+1 || lines[1] != "500 rows, lines 1, 201, 401, 601, 801, …: column 1: x" || lines[failureGroups] != "75000 more rows would fail for other reasons" {
		t.Errorf("got %d lines, the second %q, the last %q", len(lines), lines[1], lines[len(lines)-1])
	}
	if err := f.err(200_000); err == nil || err.Error() != "100000 of 200000 rows would fail: fix the template or these rows" {
		t.Errorf("got %v", err)
	}
	if err := new(failures).err(3); err != nil {
		t.Errorf("no failure: %v", err)
	}
}

func TestOneOfManyInitsWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var all sync.WaitGroup
	won := make(chan error, 8)
	for range cap(won) {
		all.Go(func() { won <- writeStarter(dir, false) })
	}
	all.Wait()
	succeeded := 0
	for range cap(won) {
		if err := <-won; err == nil {
			succeeded++
		}
	}
	files, err := os.ReadDir(dir)
	if succeeded != 1 || len(files) != len(starterFiles) || err != nil {
		t.Errorf("%d succeeded and left %d files, %v", succeeded, len(files), err)
	}
}

func TestInitThatFailsLeavesNoHalves(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".env", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeStarter(dir, true); err == nil {
		t.Error("a directory was overwritten")
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 { // prompt.jinja, and the directory
		t.Errorf("got %v, %v", files, err)
	}
	path := filepath.Join(dir, "taken")
	if err := errors.Join(createFile(path, "first"), createFile(path, "second")); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(path); string(text) != "first" {
		t.Errorf("got %q, %v", text, err)
	}
}
