package llm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/excerpt"
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

func TestInvalidReplyIsTransientAndComplainedAbout(t *testing.T) {
	s := schemaOf(t, reviewSchema)
	for text, want := range map[string]string{
		`five stars`:                  "is not one JSON value",
		``:                            "is not one JSON value",
		`{"mood":"good"}{"mood":1}`:   "is not one JSON value",
		"```json\n{\"mood\":\"good\"": "is not one JSON value",
		`{"mood":"good","stars":9}`:   "at '/stars': maximum: got 9, want 5",
		`{"mood":"so-so"}`:            "missing property 'stars'",
		`[` + strings.Repeat(`"long",`, 500) + `1]`: "want object",
	} {
		_, err := s.Validate(text)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class != Transient || e.Reason != ReasonSchemaValidationFailed {
			t.Errorf("Validate(%q) = %v", text, err)
			continue
		}
		complaint := s.Complaint(err)
		if !strings.Contains(complaint, want) || strings.Contains(complaint, "\n") || len(complaint) > 2*excerpt.BytesMax {
			t.Errorf("complaint about %.40q: %q does not say %q in one short line", text, complaint, want)
		}
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
		if _, err := ParseSchema([]byte(source), "reply.json"); err == nil || !strings.HasPrefix(err.Error(), "reply.json: ") {
			t.Errorf("%s: ParseSchema(%s) = %v, want an error that names the source", name, source, err)
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
