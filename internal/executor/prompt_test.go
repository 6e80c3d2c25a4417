package executor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
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
		schema := stagetest.Value(schema.Parse([]byte(tt.schema), "schema"))(t)
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

// TestAReplyNestedTooDeepIsNoValue: an element's result is read back when its row is answered, and the row's by the next
// stage.
func TestAReplyNestedTooDeepIsNoValue(t *testing.T) {
	anything := stagetest.Value(schema.Parse([]byte(`{}`), "schema"))(t)
	format := stagetest.Value(row.NewFormat("reply", row.Provenance{}))(t)
	p := &Prompt{schema: anything, format: format}
	accepted := 0
	for depth := jsonbytes.DepthMax - 4; depth <= jsonbytes.DepthMax; depth++ {
		j := &job{row: &consumer.Row{MaxBodyBytes: 1 << 20}, parsed: noMembers}
		body, _, err := p.result(j, &answer{Text: strings.Repeat("[", depth) + strings.Repeat("]", depth)})
		if err != nil {
			continue
		}
		accepted++
		a, ok := row.ReadAnswer(body, true)
		if !ok {
			t.Errorf("a reply %d deep is accepted, and its result can't be read back", depth)
			continue
		}
		if _, err := row.Parse(format.AppendItems(nil, noMembers, []*row.Answer{a})); err != nil {
			t.Errorf("a reply %d deep is accepted, and the result of its row is none: %.100s", depth, err)
		}
	}
	if accepted == 0 {
		t.Error("no reply was accepted")
	}
}
