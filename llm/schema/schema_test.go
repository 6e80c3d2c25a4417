package schema

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const reviewSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "mood": {"enum": ["good", "bad"]},
    "stars": {"type": "integer", "minimum": 1, "maximum": 5}
  },
  "required": ["mood", "stars"],
  "additionalProperties": false
}`

func TestReplyIsValidatedAndStoredCompact(t *testing.T) {
	s := schemaOf(t, reviewSchema)
	for name, text := range map[string]string{
		"plain":           `{"mood":"good","stars":5}`,
		"indented":        "\n{\n  \"mood\": \"good\",\n  \"stars\": 5\n}\n",
		"fenced":          "```json\n{\"mood\":\"good\",\n\"stars\":5}\n```",
		"anonymous fence": " ```\n{\"mood\":\"good\",\"stars\":5}```\n",
	} {
		got, err := s.Validate(text)
		if want := `{"mood":"good","stars":5}`; err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
	}
}

func TestDigitsAreKept(t *testing.T) {
	s := schemaOf(t, `{"type":"array","items":{"type":"number"}}`)
	const text = `[12345678901234567890.10,1e400]`
	if got, err := s.Validate(text); err != nil || string(got) != text {
		t.Errorf("got %s, %v, want %s", got, err, text)
	}
}

func TestSchemaReadsNothingElse(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "other.json")
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{
		"file":               `{"$ref":"file://` + file + `"}`,
		"network":            `{"$ref":"http://127.0.0.1:1/schema.json"}`,
		"not JSON":           `{"type":`,
		"no schema":          `{"type":"text"}`,
		"pattern":            `{"type":"string","pattern":"("}`,
		"nowhere":            `{"$ref":"#/$defs/none"}`,
		"metaschema unknown": `{"$schema":"https://example.com/mine"}`,
	} {
		if _, err := Parse([]byte(source), "reply.json"); err == nil || !strings.HasPrefix(err.Error(), "reply.json: ") {
			t.Errorf("%s: Parse(%s) = %v, want an error that names the source", name, source, err)
		}
	}
}

func TestSchemaIsSharedByGoroutines(t *testing.T) {
	s := schemaOf(t, reviewSchema)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if _, err := s.Validate(`{"mood":"good","stars":5}`); err != nil {
					t.Error(err)
				}
				if _, err := s.Validate(`{"mood":5}`); err == nil {
					t.Error("no error")
				}
			}
		})
	}
	wg.Wait()
}

func schemaOf(t *testing.T, source string) *Schema {
	t.Helper()
	s, err := Parse([]byte(source), "schema")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func FuzzSchemaReply(f *testing.F) {
	s, err := Parse([]byte(reviewSchema), "schema")
	if err != nil {
		f.Fatal(err)
	}
	f.Add("```json\n{\"mood\":\"good\",\"stars\":5}\n```")
	f.Add(`{"mood":5}`)
	f.Fuzz(func(t *testing.T, text string) {
		value, err := s.Validate(text)
		if err == nil && (!json.Valid(value) || strings.ContainsAny(string(value), "\n\r")) {
			t.Errorf("Validate(%q) = %q", text, value)
		}
	})
}
