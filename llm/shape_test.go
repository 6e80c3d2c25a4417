package llm

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
)

func TestShapeShowsMembersWithoutContents(t *testing.T) {
	schema := schemaOf(t, `{"type":"object","properties":{"secret":{"type":"string"}},"required":["secret"],"additionalProperties":false}`)
	request := Request{
		System: "secret system", Prompt: "secret prompt: \"ä\"", Temperature: new(0.7), MaxTokens: new(16), Schema: schema,
		ExtraBody: json.RawMessage(`{"foo": true, "user": "secret ä", "stop": ["secret", "b"], "seed": -1.5e3, "none": null}`),
	}
	const extra = `foo: true, user: "…" (9 bytes), stop: [2], seed: -1.5e3, none: null}`
	tests := []struct {
		provider string
		cfg      ProviderConfig
		want     string
	}{
		{
			OpenAI,
			ProviderConfig{BaseURL: "http://host:8000/v1"},
			`POST http://host:8000/v1/chat/completions {model: "gpt-x", messages: [2], temperature: 0.7, max_tokens: 16, response_format: {…}, ` + extra,
		},
		{
			OpenAIResponses,
			ProviderConfig{},
			`POST https://api.openai.com/v1/responses {model: "gpt-x", instructions: "…" (13 bytes), input: [1], store: false, temperature: 0.7, max_output_tokens: 16, text: {…}, ` + extra,
		},
		{
			Anthropic,
			ProviderConfig{},
			`POST https://api.anthropic.com/v1/messages {model: "gpt-x", max_tokens: 16, system: "…" (13 bytes), messages: [1], temperature: 0.7, output_config: {…}, ` + extra,
		},
		{
			Gemini,
			ProviderConfig{},
			`POST https://generativelanguage.googleapis.com/v1beta/models/gpt-x:generateContent {systemInstruction: {…}, contents: [1], generationConfig: {…}, ` + extra,
		},
		{
			Azure,
			ProviderConfig{BaseURL: "https://res.openai.azure.com", AzureAPIVersion: "2024-10-21"},
			`POST https://res.openai.azure.com/openai/deployments/gpt-x/chat/completions?api-version=2024-10-21 {model: "gpt-x", messages: [2], temperature: 0.7, max_completion_tokens: 16, response_format: {…}, ` + extra,
		},
	}
	for _, tt := range tests {
		t.Run(tt.provider, func(t *testing.T) {
			tt.cfg.APIKey, tt.cfg.Model = redact.NewSecret("secret-key"), "gpt-x"
			if got := shapeOf(t, tt.provider, &tt.cfg, &request); got != tt.want || strings.Contains(got, "secret") {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestShapeIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	var members []string
	for i := range 100 {
		members = append(members, fmt.Sprintf(`"%d%s": 1%s`, i, long, strings.Repeat("0", 1000)))
	}
	extra := json.RawMessage("{" + strings.Join(members, ",") + "}")
	for _, provider := range Providers() {
		for _, model := range []string{"m", long, strings.Repeat("\x01", 1000)} {
			cfg := ProviderConfig{BaseURL: "http://host/" + strings.Repeat("x", 1000), APIKey: redact.NewSecret("secret-key"), Model: "m"}
			got := shapeOf(t, provider, &cfg, &Request{Model: model, Prompt: "hello", ExtraBody: extra})
			if len(got) > 500 || !utf8.ValidString(got) || !strings.HasPrefix(got, "POST http://host/xxx") || !strings.HasSuffix(got, ", …}") {
				t.Errorf("%s: %d bytes: %s", provider, len(got), got)
			}
		}
	}
}

func shapeOf(t *testing.T, provider string, cfg *ProviderConfig, r *Request) string {
	t.Helper()
	c := newClient(t, provider, *cfg)
	p := must.Value(c.Prepare(r))(t)
	return p.Shape()
}
