package executor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/schema"
)

// TestNoNoteOfASchemaThatIsNotSent: the extra body may take the schema out of the request.
func TestNoNoteOfASchemaThatIsNotSent(t *testing.T) {
	const (
		uri       = `{"type":"object","properties":{"a":{"type":"string","format":"uri"}},"required":["a"],"additionalProperties":false}`
		recursive = `{"type":"object","properties":{"a":{"$ref":"#"},"b":{"format":"x"}},"required":["a"],"additionalProperties":false}`
	)
	for _, tt := range []struct{ schema, provider, extra, want string }{
		{uri, llm.OpenAI, ``, "sent without strict"},
		{uri, llm.OpenAI, `{"top_p":1}`, "sent without strict"},
		{uri, llm.OpenAI, `{"text":null}`, "sent without strict"},
		{uri, llm.OpenAI, `{"response_format":{"type":"json_schema"}}`, "sent without strict"},
		{uri, llm.OpenAI, `{"response_format":null}`, ""},
		{uri, llm.OpenAI, `{"response_format": {"type":"json_object", "json_schema": null}}`, ""},
		{uri, llm.OpenRouter, `{"response_format":null}`, ""},
		{uri, llm.Azure, `{"response_format":null}`, ""},
		{uri, llm.OpenAIResponses, `{"response_format":null}`, "sent without strict"},
		{uri, llm.OpenAIResponses, `{"text":null}`, ""},
		{uri, llm.OpenAIResponses, `{"text":{"format":null}}`, ""},
		{uri, llm.Gemini, ``, "sent whole"},
		{uri, llm.Gemini, `{"generationConfig":{"responseJsonSchema":null}}`, ""},
		{recursive, llm.Gemini, `{"generationConfig":{"responseJsonSchema":null}}`, "sent in the system prompt"},
		{recursive, llm.Anthropic, `{"output_config":null}`, "sent in the system prompt"},
		{uri, llm.Anthropic, `{"output_config":null}`, ""},
	} {
		schema, err := schema.Parse([]byte(tt.schema), "schema")
		if err != nil {
			t.Fatal(err)
		}
		p := &Prompt{schema: schema, Base: llm.Request{ExtraBody: json.RawMessage(tt.extra)}}
		cfg := new(config.Config)
		cfg.LLM.Provider = tt.provider
		got := ""
		for _, note := range p.SchemaNotes(cfg) {
			got += note.Text
		}
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s, %s with %s: note %q, want %q", tt.schema, tt.provider, tt.extra, got, tt.want)
		}
	}
}
