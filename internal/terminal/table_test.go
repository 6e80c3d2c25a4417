package terminal

import (
	"strings"
	"testing"
)

func TestATableAlignsItsCellsWhateverIsInThem(t *testing.T) {
	var got strings.Builder
	table := NewTable(&got)
	table.Line("a", "long\x1b[31m\nname", "b")
	table.Line("longer", "c", "d")
	table.Line()
	table.Line("e", "f")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got.String(), "\n")
	if len(lines) != 5 || strings.ContainsAny(got.String(), "\x1b\t") || !strings.HasPrefix(lines[0], "a       long") ||
		strings.Index(lines[0], " b") != strings.Index(lines[1], " d") || lines[2] != "" || lines[3] != "e  f" {
		t.Errorf("got\n%s", got.String())
	}
}
