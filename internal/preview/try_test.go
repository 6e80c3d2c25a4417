package preview_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/preview"
)

// Of a row that fans out a person sees the first elements; as JSON there is an object for each.
func TestTryShowsTheElementsOfARow(t *testing.T) {
	cfg, err := config.Source{Environ: map[string]string{"STAGE_FOREACH": "of", "STAGE_LLM_PROVIDER": "mock"}}.Load(t.Context(), config.NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	const rows = `{"of":["a","b","c","d","e"]}` + "\n" + `{"of":[]}` + "\n" + `{"of":1}` + "\n" + `{"of":[7]}` + "\n"
	for _, tt := range []struct {
		asJSON bool
		want   string
	}{
		{false, "--- line 1, element 0 of 5\n1/5 a\n--- line 1, element 1 of 5\n2/5 b\n--- line 1, element 2 of 5\n3/5 c\n--- line 1: 2 more elements\n" +
			"--- line 2: no elements, no call\n--- line 3\nerror: row: the member \"of\" is no array: each element of it is a call of its own\n" +
			"--- line 4, element 0 of 1\n1/1 7\n---\n4 rows; nothing was called or stored\nabout 2 prompt tokens an element: T\n"},
		{true, `{"line":1,"item":0,"items":5,"prompts":[{"template":"T","prompt":"1/5 a"}]}` + "\n" +
			`{"line":1,"item":1,"items":5,"prompts":[{"template":"T","prompt":"2/5 b"}]}` + "\n" +
			`{"line":1,"item":2,"items":5,"prompts":[{"template":"T","prompt":"3/5 c"}]}` + "\n" +
			`{"line":1,"item":3,"items":5,"prompts":[{"template":"T","prompt":"4/5 d"}]}` + "\n" +
			`{"line":1,"item":4,"items":5,"prompts":[{"template":"T","prompt":"5/5 e"}]}` + "\n" +
			`{"line":2,"prompts":[]}` + "\n" +
			`{"line":3,"prompts":[{"template":"T","error":"row: the member \"of\" is no array: each element of it is a call of its own"}]}` + "\n" +
			`{"line":4,"item":0,"items":1,"prompts":[{"template":"T","prompt":"1/1 7"}]}` + "\n"},
	} {
		const text = "{{loop.index}}/{{loop.length}} {{item}}"
		templates, err := preview.LoadTemplates(cfg, []string{text}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = preview.Try(t.Context(), preview.Input{Name: "-", Stdin: strings.NewReader(rows)}, templates, &out, tt.asJSON)
		if err == nil || err.Error() != "1 of 4 rows would fail: fix the template or these rows" {
			t.Errorf("as JSON %t: got %v", tt.asJSON, err)
		}
		got := strings.ReplaceAll(out.String(), text, "T")
		if got != tt.want {
			t.Errorf("as JSON %t: got\n%s\nwant\n%s", tt.asJSON, got, tt.want)
		}
	}
}
