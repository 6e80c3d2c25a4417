//go:build jinja

package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template"
)

// differences are the templates that render to another text than in Jinja, each with its reason in docs/templates.md.
var differences = map[string]string{
	"lexnparse.TestSyntax.test_trailing_comma.1": "keys are strings",
}

// sample is a template of Jinja's tests, as record.py writes it.
type sample struct {
	Area, Test, Template string
	Why                  string // not empty: the template cannot be compared
	Context              map[string]json.RawMessage
	Want                 *string
	Fails                string // why Jinja does not render it
}

// outcome is what a comparison shows.
type outcome int

const (
	same      outcome = iota // text
	bothFail                 // at whatever time
	refused                  // by us, when the template is compiled
	failed                   // by us, when it is rendered
	different                // text, or only Jinja fails
	outcomes
)

func TestTemplatesOfJinjasTests(t *testing.T) {
	version, templates := record(t)
	areas := map[string]*tally{}
	seen := map[string]bool{}
	expected := maps.Clone(differences)
	for _, c := range templates {
		key := fmt.Sprintf("%s %q %q %s", c.Area, c.Template, c.Context, c.Why)
		if seen[key] {
			continue
		}
		seen[key] = true
		if areas[c.Area] == nil {
			areas[c.Area] = &tally{}
		}
		areas[c.Area].all++
		if c.Why != "" {
			continue
		}
		got, text := compare(t, c)
		areas[c.Area].by[got]++
		if got == same || got == bothFail {
			continue
		}
		report := t.Logf
		if got == different && expected[c.Test] == "" {
			report = t.Errorf
		}
		report("%s: %q of %s\n%s", c.Test, c.Template, c.Context, text)
		if got == different {
			delete(expected, c.Test)
		}
	}
	for test := range expected {
		t.Errorf("%s is no longer different", test)
	}
	got := table(areas)
	t.Logf("Jinja %s\n%s", version, got)
	compareTable(t, version, got)
}

// compareTable compares the table of results.md with that of a run, if both are of one version; make test-jinja UPDATE=1
// writes it.
func compareTable(t *testing.T, version, got string) {
	t.Helper()
	const path = "results.md"
	before, _, found := bytes.Cut(must.Value(os.ReadFile(path))(t), []byte("| area |"))
	if !found {
		t.Fatalf("%s has no table of areas", path)
	}
	want := slices.Concat(before, []byte(got))
	if bytes.Contains(before, []byte("Jinja "+version+" ")) {
		golden.Check(t, path, string(want))
	}
}

// compare renders a template from a row that has the context, whose members it first sets as names.
func compare(t *testing.T, c sample) (outcome, string) {
	t.Helper()
	want := "Jinja fails: " + c.Fails
	if c.Want != nil {
		want = fmt.Sprintf("Jinja renders %q", *c.Want)
	}
	var names strings.Builder
	for _, name := range slices.SortedFunc(maps.Keys(c.Context), rowLast) {
		fmt.Fprintf(&names, "{%% set %s = row.%s %%}", name, name)
	}
	tpl, err := template.Parse([]byte(names.String()+c.Template), template.Options{})
	if err != nil {
		return either(c.Want == nil, bothFail, refused), fmt.Sprintf("%s\nrefused: %v", want, err)
	}
	content := must.Value(json.Marshal(c.Context))(t)
	row, err := row.Parse(content)
	if err != nil {
		t.Fatalf("%s: %v", c.Test, err)
	}
	got, err := tpl.Render(row)
	if err != nil {
		return either(c.Want == nil, bothFail, failed), fmt.Sprintf("%s\nfails: %v", want, err)
	}
	return either(c.Want != nil && *c.Want == got, same, different), fmt.Sprintf("%s\nwe render     %q", want, got)
}

func either(ok bool, a, b outcome) outcome {
	if ok {
		return a
	}
	return b
}

// rowLast orders names so that row, which the others are taken from, is set last.
func rowLast(a, b string) int {
	switch {
	case a == "row":
		return 1
	case b == "row":
		return -1
	}
	return strings.Compare(a, b)
}

// tally counts the templates of one area.
type tally struct {
	all int
	by  [outcomes]int
}

func (a *tally) add(b *tally) {
	a.all += b.all
	for i, n := range b.by {
		a.by[i] += n
	}
}

func (a *tally) compared() (n int) {
	for _, k := range a.by {
		n += k
	}
	return n
}

// table is what results.md shows. Areas with few templates to compare are one.
func table(areas map[string]*tally) string {
	const few = 8
	var b strings.Builder
	b.WriteString("| area | templates | compared | same text | error in both | refused at start | fails with the row | different | agree |\n")
	b.WriteString("| --- | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	line := func(name string, a *tally) {
		fmt.Fprintf(&b, "| %s | %d | %d |", name, a.all, a.compared())
		for _, n := range a.by {
			fmt.Fprintf(&b, " %d |", n)
		}
		fmt.Fprintf(&b, " %d%% |\n", 100*(a.by[same]+a.by[bothFail])/max(1, a.compared()))
	}
	var others, all tally
	for _, name := range slices.Sorted(maps.Keys(areas)) {
		all.add(areas[name])
		if areas[name].compared() < few {
			others.add(areas[name])
			continue
		}
		line(strings.ReplaceAll(name, "_", " "), areas[name])
	}
	line("others", &others)
	line("all", &all)
	return b.String()
}
