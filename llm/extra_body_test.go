package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/llm/redact"
)

// TestExtraBodiesOfTheReferences compares testdata/requests/extra-bodies.txt with the requests that result from what
// docs/requests.md and docs/providers.md advise for the extra body. Each names the SDK or specification that its members
// are from.
func TestExtraBodiesOfTheReferences(t *testing.T) {
	closed := schemaOf(t, `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
	azure := ProviderConfig{BaseURL: "https://res.services.ai.azure.com"}
	tests := []struct {
		provider, source string
		cfg              ProviderConfig
		request          Request
		extra            string
	}{
		{
			OpenAI, "openai-openapi 2.3.0, CreateChatCompletionRequest",
			ProviderConfig{},
			Request{Temperature: new(0.0), MaxTokens: new(9)},
			`{"reasoning_effort":"none","service_tier":"flex","prompt_cache_key":"reviews","prompt_cache_options":{"mode":"explicit"}}`,
		},
		{
			OpenAIResponses, "openai-openapi 2.3.0, CreateResponse; the schema's text.format stays",
			ProviderConfig{},
			Request{MaxTokens: new(99), Schema: closed},
			`{"reasoning":{"effort":"low"},"text":{"verbosity":"low"},"service_tier":"flex"}`,
		},
		{Azure, "pydantic-ai 6593: Mistral deployments refuse max_completion_tokens", azure, Request{}, `{"max_tokens":256}`},
		{
			OpenRouter, "OpenRouter typescript-sdk 1.2.54, ChatRequest",
			ProviderConfig{},
			Request{MaxTokens: new(9)},
			`{"reasoning":{"effort":"none"},"provider":{"require_parameters":true}}`,
		},
		{
			Anthropic, "anthropic-sdk-python 0.121.0, TextBlockParam.cache_control; in place of the system prompt",
			ProviderConfig{},
			Request{System: "Be brief."},
			`{"system":[{"type":"text","text":"Answer in one word.","cache_control":{"type":"ephemeral","ttl":"1h"}}]}`,
		},
		{
			Anthropic, "anthropic-sdk-python 0.121.0, OutputConfigParam; the schema's output_config.format stays",
			ProviderConfig{},
			Request{Schema: closed},
			`{"output_config":{"effort":"low"},"thinking":{"type":"adaptive"},"service_tier":"standard_only","inference_geo":"us"}`,
		},
		{
			Gemini, "python-genai 2.19.0, ThinkingConfig and serviceTier; the other generationConfig stays",
			ProviderConfig{},
			Request{MaxTokens: new(99), Schema: closed},
			`{"generationConfig":{"thinkingConfig":{"thinkingLevel":"low"}},"serviceTier":"flex"}`,
		},
	}
	var b bytes.Buffer
	for _, tt := range tests {
		tt.cfg.APIKey, tt.cfg.Model = redact.NewSecret("secret-key"), "model-1"
		c := newClient(t, tt.provider, tt.cfg)
		tt.request.Prompt, tt.request.ExtraBody = "Hi.", json.RawMessage(tt.extra)
		p, err := c.Prepare(&tt.request)
		if err != nil {
			t.Fatalf("%s: %v", tt.extra, err)
		}
		fmt.Fprintf(&b, "=== %s: %s\n", tt.provider, tt.source)
		if err := json.Indent(&b, p.Body, "", "  "); err != nil {
			t.Fatalf("%s: %v in %s", tt.extra, err, p.Body)
		}
		b.WriteString("\n\n")
	}
	golden.Check(t, filepath.Join("testdata", "requests", "extra-bodies.txt"), b.String())
}
