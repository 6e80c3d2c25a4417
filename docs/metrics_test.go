package docs_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/golden"
)

// The page about metrics has the table that follows from an exposition of all of them; go test -update writes it.
func TestThePageHasEachMetric(t *testing.T) {
	const begin, end = "<!-- metrics: made by make docs -->\n", "<!-- end of metrics -->"
	const path = "metrics.md"
	page := read(t, path)
	head, rest, ok := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatal("the page has no place for the table")
	}
	golden.Check(t, path, head+begin+tableOfMetrics(t, read(t, "../internal/ops/metrics/testdata/metrics.txt"))+end+tail)
}

// tableOfMetrics makes a line of each metric of an exposition: its name with its labels, its type and its help.
func tableOfMetrics(t *testing.T, exposition string) string {
	t.Helper()
	label := regexp.MustCompile(`([a-z_]+)="`)
	var b strings.Builder
	b.WriteString("| metric | type | meaning |\n| --- | --- | --- |\n")
	families := strings.Split(exposition, "# HELP ")[1:]
	for _, family := range families {
		first, rest, _ := strings.Cut(family, "\n")
		name, help, _ := strings.Cut(first, " ")
		kind, samples, _ := strings.Cut(strings.TrimPrefix(rest, "# TYPE "+name+" "), "\n")
		var labels []string
		for _, m := range label.FindAllStringSubmatch(samples, -1) {
			if m[1] != "le" && !slices.Contains(labels, m[1]) {
				labels = append(labels, m[1])
			}
		}
		if len(labels) > 0 {
			slices.Sort(labels)
			name += "{" + strings.Join(labels, ",") + "}"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, kind, strings.TrimSuffix(help, "."))
	}
	if len(families) < 30 {
		t.Errorf("%d metrics: the test no longer finds them", len(families))
	}
	return b.String()
}
