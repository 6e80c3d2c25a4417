package preview

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

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
	if err := f.err(200_000, 0); err == nil || err.Error() != "100000 of 200000 rows would fail: fix the template or these rows" {
		t.Errorf("got %v", err)
	}
	if err := f.err(200_000, 1); err == nil || err.Error() != "100000 of 200000 rows would fail or have elements that do: fix the template or these rows" {
		t.Errorf("elements: got %v", err)
	}
	if err := new(failures).err(3, 0); err != nil {
		t.Errorf("no failure: %v", err)
	}
}
