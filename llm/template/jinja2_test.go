package template

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/row"
)

// jinja2Differences are the templates of jinja2.json that we render differently or refuse
// on purpose, as docs/templates.md explains.
var jinja2Differences = map[string]string{
	"{{ [row.missing] }}": "undefined: row.missing",
}

// jinja2File has templates and what Jinja2 renders.
type jinja2File struct {
	Row, Lookup json.RawMessage
	Cases       []jinja2Case
}

type jinja2Case struct {
	Template, Fails string
	Want            *string // or nil if it fails
}

// readJinja2 reads a file that a script beside it has written.
func readJinja2(t *testing.T, name string, into any) {
	t.Helper()
	content := must.Value(os.ReadFile("testdata/" + name))(t)
	must.Do(t, json.Unmarshal(content, into))
}

// compareWithJinja2 renders each template and compares.
func compareWithJinja2(t *testing.T, cases []jinja2Case, row *row.Row, lookup *Lookup) {
	t.Helper()
	for _, c := range cases {
		var got string
		tpl, err := Parse([]byte(c.Template), Options{Lookup: lookup})
		if err == nil {
			got, err = tpl.Render(row)
		}
		if want, ok := jinja2Differences[c.Template]; ok {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s\n got %q, %v\nwant an error with %s", c.Template, got, err, want)
			}
			continue
		}
		switch {
		case c.Want == nil && err == nil:
			t.Errorf("%s\n got %q\nJinja2 fails: %s", c.Template, got, c.Fails)
		case c.Want != nil && err != nil:
			t.Errorf("%s\n got error %v\nwant %q", c.Template, err, *c.Want)
		case c.Want != nil && got != *c.Want:
			t.Errorf("%s\n got %q\nwant %q", c.Template, got, *c.Want)
		case err != nil && strings.Contains(err.Error(), "panic"):
			t.Errorf("%s: %v", c.Template, err)
		}
	}
}

func TestTemplatesRenderAsInJinja2(t *testing.T) {
	var file jinja2File
	readJinja2(t, "jinja2.json", &file)
	lookup := must.Value(ParseLookup(file.Lookup, ""))(t)
	compareWithJinja2(t, file.Cases, mustRow(t, string(file.Row)), lookup)
}

func TestRandomBlocksAreAsInJinja2(t *testing.T) {
	var file jinja2File
	readJinja2(t, "blocks.json", &file)
	compareWithJinja2(t, file.Cases, mustRow(t, string(file.Row)), nil)
}

func TestRandomExpressionsAreAsInJinja2(t *testing.T) {
	var file struct {
		Row   json.RawMessage
		Cases [][2]*string // the expression and its result
	}
	readJinja2(t, "expressions.json", &file)
	cases := make([]jinja2Case, len(file.Cases))
	for i, c := range file.Cases {
		cases[i] = jinja2Case{Template: "{{ " + *c[0] + " }}", Want: c[1]}
	}
	compareWithJinja2(t, cases, mustRow(t, string(file.Row)), nil)
}
