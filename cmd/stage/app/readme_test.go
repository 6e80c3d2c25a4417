package app

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeHoldsTheTableOfVariables fails when a variable was added or changed and `make docs` was not run.
func TestReadmeHoldsTheTableOfVariables(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "<!-- configuration: begin, written by make docs -->\n")
	table, _, closed := strings.Cut(rest, "<!-- configuration: end -->")
	if !ok || !closed {
		t.Fatal("README.md: the marks of the configuration table are missing")
	}
	var want strings.Builder
	if err := writeMarkdown(&want); err != nil {
		t.Fatal(err)
	}
	if table != want.String() {
		t.Error("README.md: the configuration table is not that of stage config --markdown: run make docs")
	}
}
