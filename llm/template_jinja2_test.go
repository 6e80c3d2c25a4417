package llm

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// jinja2Differences are the templates of jinja2.json that we render differently or refuse,
// on purpose. docs/templates.md tells each.
var jinja2Differences = map[string]string{
	"{{ [row.missing] }}": "undefined: row.missing",
}

func TestTemplatesRenderAsInJinja2(t *testing.T) {
	content, err := os.ReadFile("testdata/template/jinja2.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Row, Lookup json.RawMessage
		Cases       []struct {
			Template, Fails string
			Want            *string
		}
	}
	if err := json.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	row := mustRow(t, string(file.Row))
	lookup, err := ParseLookup(file.Lookup, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		var got string
		tpl, err := ParseTemplate([]byte(c.Template), TemplateOptions{Lookup: lookup})
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
		}
	}
}
