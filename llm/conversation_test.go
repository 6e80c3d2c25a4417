package llm_test

import (
	"errors"
	"testing"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// What each wire format makes of a conversation, and of content in parts.
func TestConversations(t *testing.T) {
	fewShot := llm.Request{Model: "m", System: "Label tickets.", Messages: []llm.Message{
		{Role: llm.RoleSystem, Text: "Labels: bug, idea"},
		{Role: llm.RoleUser, Text: "It crashes"},
		{Role: llm.RoleAssistant, Text: "bug"},
		{Role: llm.RoleUser, Text: "Add \"dark\" mode"},
	}}
	parts := llm.Request{Model: "m", Messages: []llm.Message{
		{Role: llm.RoleUser, Parts: []llm.Part{{Text: "one"}, {Text: "two"}}},
		{Role: llm.RoleAssistant, Parts: []llm.Part{{Text: "three"}}},
		{Role: llm.RoleUser, Text: "four"},
	}}
	rejected := parts
	rejected.Rejected, rejected.Complaint = "4", "No JSON."
	late := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.RoleUser, Text: "a"}, {Role: llm.RoleSystem, Text: "b"}, {Role: llm.RoleUser, Text: "c"}}}
	alone := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.RoleSystem, Text: "b"}}}
	const place = "message 2 is a system message behind others, which this wire format has no place for; move it to the start"
	const user = "the conversation has system messages alone; add one of the user"
	for _, tt := range []struct {
		name    string
		request llm.Request
		want    map[string]string // by provider: the body, or the error
	}{
		{"few-shot", fewShot, map[string]string{
			"openrouter":       `{"model":"m","messages":[{"role":"system","content":"Label tickets."},{"role":"system","content":"Labels: bug, idea"},{"role":"user","content":"It crashes"},{"role":"assistant","content":"bug"},{"role":"user","content":"Add \"dark\" mode"}]}`,
			"openai-responses": `{"model":"m","instructions":"Label tickets.","input":[{"role":"system","content":"Labels: bug, idea"},{"role":"user","content":"It crashes"},{"role":"assistant","content":"bug"},{"role":"user","content":"Add \"dark\" mode"}],"store":false}`,
			"anthropic":        `{"model":"m","max_tokens":4096,"system":"Label tickets.\n\nLabels: bug, idea","messages":[{"role":"user","content":"It crashes"},{"role":"assistant","content":"bug"},{"role":"user","content":"Add \"dark\" mode"}]}`,
			"gemini":           `{"systemInstruction":{"parts":[{"text":"Label tickets.\n\nLabels: bug, idea"}]},"contents":[{"role":"user","parts":[{"text":"It crashes"}]},{"role":"model","parts":[{"text":"bug"}]},{"role":"user","parts":[{"text":"Add \"dark\" mode"}]}]}`,
		}},
		{"parts", parts, map[string]string{
			"openrouter":       `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"role":"assistant","content":[{"type":"text","text":"three"}]},{"role":"user","content":"four"}]}`,
			"openai-responses": `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"one"},{"type":"input_text","text":"two"}]},{"role":"assistant","content":[{"type":"output_text","text":"three"}]},{"role":"user","content":"four"}],"store":false}`,
			"anthropic":        `{"model":"m","max_tokens":4096,"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"role":"assistant","content":[{"type":"text","text":"three"}]},{"role":"user","content":"four"}]}`,
			"gemini":           `{"contents":[{"role":"user","parts":[{"text":"one"},{"text":"two"}]},{"role":"model","parts":[{"text":"three"}]},{"role":"user","parts":[{"text":"four"}]}]}`,
		}},
		{"answer rejected", rejected, map[string]string{
			"openrouter": `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"role":"assistant","content":[{"type":"text","text":"three"}]},{"role":"user","content":"four"},{"role":"assistant","content":"4"},{"role":"user","content":"No JSON."}]}`,
		}},
		{"system message behind others", late, map[string]string{
			"openrouter": `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"}]}`,
			"anthropic":  place, "gemini": place,
		}},
		{"no user", alone, map[string]string{"anthropic": user, "gemini": user}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for provider, want := range tt.want {
				client := newClient(t, provider, llm.ProviderConfig{Model: "m", APIKey: redact.NewSecret("k")})
				p, err := client.Prepare(&tt.request)
				got := ""
				if e, ok := errors.AsType[*llm.Error](err); ok && e.Reason == llm.ReasonInvalidRow && e.Class == llm.Permanent {
					got = e.Err.Error()
				} else if err == nil {
					got = string(p.Body)
				}
				if got != want {
					t.Errorf("%s:\n%s\nwant\n%s", provider, got, want)
				}
			}
		})
	}
}
