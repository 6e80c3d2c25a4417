// Package golden compares what a test got with a file, and writes the file instead when
// tests run with -update.
package golden

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// Check fails the test if got differs from the content of the file at path. With -update
// it writes the file, whose directory must exist.
func Check(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		line, was, is := difference(string(want), got)
		t.Errorf("%s is out of date: run go test with -update and read the diff\nline %d\ngot:  %s\nwant: %s", path, line, is, was)
	}
}

// difference returns the first line that differs, counted from 1. A text that ends before
// it has none.
func difference(want, got string) (line int, was, is string) {
	for {
		line++
		var moreWant, moreGot bool
		was, want, moreWant = strings.Cut(want, "\n")
		is, got, moreGot = strings.Cut(got, "\n")
		if was != is || moreWant != moreGot {
			return line, was, is
		}
	}
}
