package preview_test

import (
	"bytes"
	"io"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/preview"
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
			"--- line 4, element 0 of 1\n1/1 7\n---\n4 rows; nothing was called or stored\nabout 7 prompt tokens, 1 an element: T\n"},
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

// Try and a dry run estimate the same number of tokens, for any rows, template, system prompt and
// schema.
func TestTryAndDryRunEstimateTheSame(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("schema.json", []byte(`{"type": "object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	estimate := regexp.MustCompile(`about \d+ prompt tokens`)
	for name, tt := range map[string]struct {
		rows, want string
		env        map[string]string
	}{
		"one row":                  {`{"n":"abcde"}`, "about 1 prompt tokens", nil},
		"several":                  {`{"n":"abcde"}` + "\n" + `{"n":"abcd"}` + "\n" + `{"n":1}`, "about 2 prompt tokens", nil},
		"one that fails":           {`{"n":"abcde"}` + "\n" + `{}`, "about 1 prompt tokens", nil},
		"system prompt and schema": {`{"n":"abcde"}`, "about 7 prompt tokens", map[string]string{"STAGE_SYSTEM_PROMPT": "1234567", "STAGE_RESPONSE_SCHEMA_FILE": "schema.json"}},
		"elements": {
			`{"n":"abcde","of":[1,2]}` + "\n" + `{"n":"abcde","of":[2,1,2,1]}`, "about 7 prompt tokens",
			map[string]string{"STAGE_FOREACH": "of"},
		},
		"elements that fail": {
			`{"n":"abcde","of":[1,2]}` + "\n" + `{"of":[2,1,2,1]}`, "about 2 prompt tokens",
			map[string]string{"STAGE_FOREACH": "of", "STAGE_TEMPLATE": "{{ row.n if item == 1 else row.n }}"},
		},
	} {
		env := map[string]string{"STAGE_TEMPLATE": "{{ row.n }}", "STAGE_LLM_PROVIDER": "mock"}
		maps.Copy(env, tt.env)
		cfg, err := config.Source{Environ: env}.Load(t.Context(), config.NeedPrompt)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		templates, err := preview.LoadTemplates(cfg, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var tried, dry bytes.Buffer
		tryErr := preview.Try(t.Context(), preview.Input{Name: "-", Stdin: strings.NewReader(tt.rows)}, templates, &tried, false)
		dryErr := preview.DryRun(t.Context(), cfg, preview.Input{Name: "-", Stdin: strings.NewReader(tt.rows)}, 0, &dry, io.Discard)
		if (tryErr != nil) != (dryErr != nil) {
			t.Errorf("%s: try %v, dry run %v", name, tryErr, dryErr)
		}
		if got, same := estimate.FindString(tried.String()), estimate.FindString(dry.String()); got != tt.want || same != tt.want {
			t.Errorf("%s: try says %q, a dry run %q, want %q", name, got, same, tt.want)
		}
	}
}
