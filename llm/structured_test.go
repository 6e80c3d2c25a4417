package llm

import (
	"errors"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm/schema"
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
		_, err := ValidateReply(s, text)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class != Transient || e.Reason != ReasonSchemaValidationFailed {
			t.Errorf("Validate(%q) = %v", text, err)
			continue
		}
		complaint := Complaint(err)
		if !strings.Contains(complaint, want) || strings.Contains(complaint, "\n") || len(complaint) > 2*excerpt.BytesMax {
			t.Errorf("complaint about %.40q: %q does not say %q in one short line", text, complaint, want)
		}
	}
}

// closedObject wraps the schema of one property in all that strict modes ask of an object.
func closedObject(property string) string {
	return `{"type":"object","properties":{"a":` + property + `},"required":["a"],"additionalProperties":false}`
}

func TestNoteNamesThePlaceAndTheProvider(t *testing.T) {
	uri := closedObject(`{"type":"string","format":"uri"}`)
	bounds := closedObject(`{"type":"integer","minimum":1,"maximum":5}`)
	for _, row := range []struct{ source, provider, want string }{
		{uri, OpenAI, `sent without strict: /properties/a has the format "uri", outside OpenAI's strict mode; replies are still validated here`},
		{uri, OpenAIResponses, "sent without strict: /properties/a"},
		{uri, Azure, `sent without strict: /properties/a has the format "uri", outside Azure OpenAI's strict mode; `},
		{bounds, Azure, `sent without strict: /properties/a has "maximum", outside Azure`},
		{bounds, OpenAI, ""},
		{uri, OpenRouter, "sent without strict: /properties/a"},
		{uri, Anthropic, ""},
		{uri, Gemini, `sent whole: /properties/a has the format "uri", which Gemini ignores; replies are still validated here`},
		{bounds, "bedrock: - eu.anthropic.claude-sonnet-4-5-20250929-v1:0", `sent in the system prompt: /properties/a has "maximum", outside Bedrock's structured outputs; `},
		{uri, "bedrock: - eu.anthropic.claude-sonnet-4-5-20250929-v1:0", ""},
		{uri, "bedrock: - eu.amazon.nova-pro-v1:0", "sent in the system prompt: the schema is not enforced, since the model is not known to have structured output there; "},
		{uri, "bedrock: - arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/abc", "sent in the system prompt: the schema is not enforced, "},
		{uri, "anthropic: https://bedrock-mantle.us-east-1.api.aws/anthropic/v1 m", "sent in the system prompt: the schema is not enforced, "},
		{bounds, "vertex: - anthropic/claude-opus-4-7", "sent in the system prompt: the schema is not enforced, "},
		{bounds, "vertex: - gemini-2.5-flash", ""},
		{bounds, "vertex: - projects/p/locations/global/endpoints/1", ""},
		{uri, Mock, ""},
		{uri, "other", ""},
		{`{"type":"array"}`, Anthropic, "sent in the system prompt: the schema is not of the type object, outside Anthropic's structured outputs; "},
		{closedObject(`{"$ref":"#"}`), Gemini, "sent in the system prompt: /properties/a is recursive and required, outside Gemini's structured output; "},
		{closedObject(`{"type":"string"}`), OpenAI, ""},
		{closedObject(`{"type":"string"}`), Anthropic, ""},
		{closedObject(`{"type":"string"}`), Gemini, ""},
		{
			`{"type":"object","properties":{"x\ny":{}},"required":["x\ny"],"additionalProperties":false}`, OpenAI,
			"sent without strict: /properties/x; y has no type",
		},
	} {
		name, model, _ := strings.Cut(row.provider, ": ")
		provider, _ := LookupProvider(name) // of an unknown one nothing is known
		address, model, _ := strings.Cut(model, " ")
		got := provider.SchemaNote(address, model, schemaOf(t, row.source))
		if !strings.HasPrefix(got, row.want) || row.want == "" && got != "" || strings.Contains(got, "\n") {
			t.Errorf("%s: %s: note %q, want %q", row.source, row.provider, got, row.want)
		}
	}
}

// A schema of which a provider takes nothing goes into the system prompt; true, which is no object, goes as {}.
func TestSchemaThatIsRefusedIsDescribed(t *testing.T) {
	recursive := schemaOf(t, closedObject(`{"$ref":"#"}`))
	anything := schemaOf(t, `true`)
	bounds := schemaOf(t, closedObject(`{"type":"integer","minimum":1}`))
	for _, row := range []struct {
		wire   Wire
		schema *schema.Schema
		system string
		want   string
	}{
		{GenerateContent{}, recursive, "", `{"systemInstruction":{"parts":[{"text":"Answer with one JSON value`},
		{GenerateContent{}, recursive, "Be brief.", `{"systemInstruction":{"parts":[{"text":"Be brief.\n\nAnswer with one JSON value`},
		{GenerateContent{}, recursive, "", `"generationConfig":{"responseMimeType":"application/json"}}`},
		{GenerateContent{}, anything, "", `"responseJsonSchema":{}}}`},
		{Converse{}, recursive, "Be brief.", `"system":[{"text":"Be brief.\n\nAnswer with one JSON value`},
		{Messages{Bedrock: true}, bounds, "Be brief.", `"system":"Be brief.\n\nAnswer with one JSON value`},
		{Messages{Vertex: VertexAI{Region: "global"}}, bounds, "Be brief.", `"system":"Be brief.\n\nAnswer with one JSON value`},
		{GenerateContent{Vertex: VertexAI{Region: "global"}}, bounds, "", `"responseJsonSchema":{"type":"object"`},
		{Messages{}, recursive, "Be brief.", `"system":"Be brief.\n\nAnswer with one JSON value`},
		{ChatCompletions{}, anything, "", `"strict":false,"schema":{}}}`},
		{Responses{}, anything, "", `"strict":false,"schema":{}}}`},
		{ChatCompletions{}, bounds, "", `"strict":true,"schema":{"type":"object"`},
		{ChatCompletions{Azure: true}, bounds, "", `"strict":false,"schema":{"type":"object"`},
		{Responses{}, recursive, "", `"strict":true,"schema":{"type":"object"`},
	} {
		got := string(row.wire.AppendRequest(nil, &Request{Model: "m", System: row.system, Prompt: "p", Schema: row.schema}))
		if !strings.Contains(got, row.want) {
			t.Errorf("%T sends %s, want %s", row.wire, got, row.want)
		}
	}
}
