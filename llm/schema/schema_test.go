package schema

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
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
	const value = `{"mood":"good","stars":5}`
	for name, text := range map[string]string{
		"plain":                     value,
		"indented":                  "\n{\n  \"mood\": \"good\",\n  \"stars\": 5\n}\n",
		"fenced":                    "```json\n{\"mood\":\"good\",\n\"stars\":5}\n```",
		"anonymous fence":           " ```\n" + value + "```\n",
		"fence on one line":         "```json " + value + "```",
		"fence with a title":        "```json title=reply\n" + value + "\n```",
		"fence that is not closed":  "```json\n" + value,
		"fence that is not opened":  value + "\n```",
		"the word json":             "json\n" + value,
		"the word JSON on the line": "JSON " + value,
		"byte order mark":           "\ufeff" + value,
		"zero-width space":          "\u200b" + value + "\u200b",
		"mark before a fence":       "\ufeff```json\n" + value + "\n```",
		"end token of ChatML":       value + "<|im_end|>",
		"end token of Llama 2":      value + "</s>",
		"end token of Llama 3":      value + "<|eot_id|>\n",
		"end token of Gemma":        value + "<end_of_turn>",
		"end token of DeepSeek":     value + "<｜end▁of▁sentence｜>",
		"two end tokens":            value + "<|im_end|>\n<|endoftext|>",
		"end token behind a fence":  "```json\n" + value + "\n```\n</s>",
		"end token in a fence":      "```json\n" + value + "</s>\n```",
		"everything":                "\ufeff\n```json\n\u200b" + value + "<|im_end|>\n```\n</s> ",
	} {
		if got, err := s.Validate(text); err != nil || string(got) != value {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, value)
		}
	}
}

// Only what can't be part of a value is taken off: values that look like it stay whole.
func TestValuesThatLookLikeWrappingStayWhole(t *testing.T) {
	s := schemaOf(t, `true`)
	for text, want := range map[string]string{
		`"</s>"`:              `"</s>"`,
		"\"```\"":             "\"```\"",
		`"json"`:              `"json"`,
		`"<|im_end|>"</s>`:    `"<|im_end|>"`,
		"```true```":          `true`,
		"```null\n```":        `null`,
		"```\n5\n```":         `5`,
		"```json\n\"a\"\n```": `"a"`,
		"```text\n\"a\"\n```": `"a"`,
		"json 5":              `5`,
		"\"\ufeff\"":          "\"\ufeff\"",
	} {
		if got, err := s.Validate(text); err != nil || string(got) != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestProseAroundAValueSatisfiesNoSchema(t *testing.T) {
	s := schemaOf(t, `true`)
	for _, text := range []string{
		"Here is the JSON:\n{}", "{} I hope this helps.", "```json\n{}\n```\nI hope this helps.", "```json\n{}\n```\n```json\n{}\n```", "{}{}",
		"```", "```json", "json", "</s>", "", "\ufeff", "```json\n{\"a\":", "{}<br>", strings.Repeat("</s>", 1000),
	} {
		if got, err := s.Validate(text); err == nil || !strings.Contains(err.Error(), "is not one JSON value") {
			t.Errorf("%.40q: got %s, %v", text, got, err)
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
	must.Do(t, os.WriteFile(file, []byte(`{}`), 0o600))
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
	s := must.Value(Parse([]byte(source), "schema"))(t)
	return s
}

func FuzzSchemaReply(f *testing.F) {
	s := must.Value(Parse([]byte(reviewSchema), "schema"))(f)
	f.Add("```json\n{\"mood\":\"good\",\"stars\":5}\n```")
	f.Add(`{"mood":5}`)
	f.Add("\ufeffjson {\"mood\":\"good\",\"stars\":5}<|im_end|>\n</s>")
	f.Add("```json\n{\"mood\":\"good\",\"stars\":5}</s>\n```")
	f.Fuzz(func(t *testing.T, text string) {
		if json.Valid([]byte(text)) && bare(text) != strings.TrimSpace(text) {
			t.Errorf("bare(%q) = %q: it is JSON as it is", text, bare(text))
		}
		value, err := s.Validate(text)
		if err == nil && (!json.Valid(value) || strings.ContainsAny(string(value), "\n\r")) {
			t.Errorf("Validate(%q) = %q", text, value)
		}
	})
}
