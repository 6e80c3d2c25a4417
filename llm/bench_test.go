package llm

import (
	"net/http"
	"strings"
	"testing"
)

var benchPrompt = strings.Repeat("Is this review good or bad? \"It broke after a day.\"\n", 20)

func BenchmarkAppendRequest(b *testing.B) {
	r := Request{Model: "gpt-4.1-mini", System: "Answer with one word.", Prompt: benchPrompt, Temperature: new(0.0), MaxTokens: new(16)}
	for name, w := range map[string]Wire{
		"chat": ChatCompletions{}, "responses": Responses{}, "messages": Messages{}, "gemini": GenerateContent{},
	} {
		b.Run("wire="+name, func(b *testing.B) {
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				dst = w.AppendRequest(dst[:0], &r)
			}
			b.SetBytes(int64(len(dst)))
		})
	}
}

func BenchmarkPrepare(b *testing.B) {
	c, err := NewProvider(OpenAI, ProviderConfig{APIKey: "key", Model: "m"})
	if err != nil {
		b.Fatal(err)
	}
	r := Request{System: "Answer with one word.", Prompt: benchPrompt}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Prepare(&r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseReply(b *testing.B) {
	body := []byte(`{"id":"chatcmpl-B9MBs8","object":"chat.completion","created":1741569952,"model":"gpt-4.1","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("Good. ", 60) + `","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default"}`)
	h := http.Header{"Content-Type": {"application/json"}}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseReply(ChatCompletions{}, Known{}, now, 200, h, body); err != nil {
			b.Fatal(err)
		}
	}
}
