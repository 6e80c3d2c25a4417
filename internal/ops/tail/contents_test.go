package tail

import "testing"

func TestPromptsAndRepliesAreShownAsText(t *testing.T) {
	for _, tt := range []struct {
		name           string
		show           func([]byte) string
		body, expected string
	}{
		{"one message", promptText, `{"model":"m","messages":[{"role":"user","content":"Say\n\"one\""}]}`, "Say\n\"one\""},
		{"messages", promptText, `{"messages":[{"role":"system","content":"Be brief"},{"role":"user","content":"Say one"}]}`, "[system]\nBe brief\n\n[user]\nSay one"},
		{"blocks", promptText, `{"system":[{"type":"text","text":"Be brief"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, "[system]\nBe brief\n\n[user]\na\nb"},
		{"responses", promptText, `{"instructions":"Be brief","input":[{"role":"user","content":"Say one"}]}`, "[system]\nBe brief\n\n[user]\nSay one"},
		{"input", promptText, `{"input":"Say one"}`, "Say one"},
		{"parts", promptText, `{"contents":[{"role":"user","parts":[{"text":"Say one"}]}]}`, "Say one"},
		{"another form", promptText, `{"q":1}`, "{\n  \"q\": 1\n}"},
		{"no JSON", promptText, "\"plain\\ntext\"", "plain\ntext"},
		{"none", promptText, "", ""},
		{"choices", replyText, `{"id":"x","choices":[{"message":{"role":"assistant","content":"One."}}]}`, "One."},
		{"content", replyText, `{"type":"message","content":[{"type":"text","text":"One."}]}`, "One."},
		{"output", replyText, `{"output":[{"type":"reasoning","summary":[]},{"type":"message","content":[{"type":"output_text","text":"One."}]}]}`, "One."},
		{"candidates", replyText, `{"candidates":[{"content":{"role":"model","parts":[{"text":"One."}]}}]}`, "One."},
		{"an error", replyText, `{"error":{"message":"no"}}`, "{\n  \"error\": {\n    \"message\": \"no\"\n  }\n}"},
		{"a call of a tool", replyText, `{"choices":[{"message":{"content":null,"tool_calls":[]}}]}`, "{\n  \"choices\": [\n    {\n      \"message\": {\n        \"content\": null,\n        \"tool_calls\": []\n      }\n    }\n  ]\n}"},
	} {
		if got := tt.show([]byte(tt.body)); got != tt.expected {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.expected)
		}
	}
}
