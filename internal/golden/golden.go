// Package golden compares what a test got with a file, and writes the file instead when tests run with -update.
package golden

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// Check fails the test if got differs from the content of the file at path. With -update it writes the file.
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
	if got != string(want) {
		t.Errorf("%s is out of date: run go test with -update and read the diff\ngot:\n%s", path, got)
	}
}
