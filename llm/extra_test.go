package llm

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestExtraBodyMustBeAnObjectAndNotStream(t *testing.T) {
	for _, raw := range []string{"", "{}", ` {"seed":1}`, `{"stream":false}`, `{"a":{"stream":true}}`} {
		if err := ValidateExtraBody(json.RawMessage(raw)); err != nil {
			t.Errorf("ValidateExtraBody(%q) = %v", raw, err)
		}
	}
	for _, raw := range []string{" ", "null", "[]", "{", `{"a":1}{}`, `"x"`, `{"stream":true}`, `{"Stream":1}`} {
		if err := ValidateExtraBody(json.RawMessage(raw)); err == nil {
			t.Errorf("ValidateExtraBody(%q) = nil, want an error", raw)
		}
	}
}

// TestTheExtraBodySetsNothingThatIsTheStages: the members that each wire format has for model, prompts, and replies that
// are late or too many. deferred is xAI's: docs.x.ai, deferred chat completions. prompt, previous_response_id and
// conversation: openai-python 3.3.1, types/responses/response_create_params.py.
func TestTheExtraBodySetsNothingThatIsTheStages(t *testing.T) {
	client := newClient(t, Mock, ProviderConfig{BaseURL: "http://127.0.0.1:1"})
	for raw, want := range map[string]string{
		`{"model":"other"}`:                         `"model" is set by the stage; set Request.Model`,
		`{"model":null}`:                            `"model"`,
		`{"seed":1,"mod\u0065l":"other"}`:           `"model"`,
		`{"MODEL":"other"}`:                         `"MODEL"`, // Ollama takes it for the same
		`{"messages":[]}`:                           `"messages" is set by the stage; set Request.Prompt`,
		`{"input":"x"}`:                             `"input"`,
		`{"contents":[]}`:                           `"contents"`,
		`{"prompt":{"id":"p"}}`:                     `"prompt" is set by the stage; set Request.Prompt`,
		`{"previous_response_id":"r"}`:              `"previous_response_id" puts other text into every prompt; remove it`,
		`{"conversation":{"id":"c"}}`:               `"conversation"`,
		`{"system":"x"}`:                            `"system" is set by the stage; set Request.System`,
		`{"instructions":"x"}`:                      `"instructions"`,
		`{"systemInstruction":{}}`:                  `"systemInstruction"`,
		`{"system_instruction":{}}`:                 `"system_instruction"`,
		`{"background":true}`:                       `"background" has no reply to wait for; remove it`,
		`{"deferred":true}`:                         `"deferred"`,
		`{"stream_options":{"include_usage":true}}`: `"stream_options"`,

		`{"n":2}`:       `"n" asks for replies that would be paid for and dropped; remove it`,
		`{"n":1,"n":2}`: `"n"`,
		`{"generationConfig":{"topK":1,"candidateCount":2}}`: `"generationConfig.candidateCount"`,
		`{"generation_config":{"candidate_count":4}}`:        `"generation_config.candidate_count"`,
	} {
		err := ValidateExtraBody(json.RawMessage(raw))
		if _, ok := errors.AsType[*ExtraBodyError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", raw, err, want)
		}
		if _, err := client.Prepare(&Request{Prompt: "x", ExtraBody: json.RawMessage(raw)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: Prepare: got %v, want %s", raw, err, want)
		}
	}
	for _, raw := range []string{
		`{"response_format":null}`, `{"stream":null,"background":false,"deferred":null,"stream_options":null,"n":1,"candidateCount":null}`,
		`{"n":1.0,"generationConfig":{"candidateCount":1,"temperature":0,"model":"x","n":3}}`,
		`{"models":["a/b","c/d"],"provider":{"order":["x"]},"reasoning":{"effort":"low"}}`,                        // OpenRouter
		`{"system":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}],"metadata":{"messages":[]}}`, // Anthropic
		`{"chat_template_kwargs":{"enable_thinking":false},"guided_choice":["a"],"inputs":1,"models_":1,"":0}`,    // vLLM
		`{"max_tokens":5,"temperature":1,"store":true,"service_tier":"flex","previous_response_id":null,"conversation":null,"prompt_cache_key":"k"}`,
	} {
		if err := ValidateExtraBody(json.RawMessage(raw)); err != nil {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}
