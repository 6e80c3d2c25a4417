package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/stagetest/must"
)

// FuzzChatReply and its siblings decode bytes that no provider would send:
// for any input there is a verdict, and what the verdict promises holds.
func FuzzChatReply(f *testing.F) {
	fuzzReply(f, ChatCompletions{}, OpenAI, "compatible", OpenRouter, Azure)
}
func FuzzResponsesReply(f *testing.F) { fuzzReply(f, Responses{}, OpenAIResponses) }
func FuzzMessagesReply(f *testing.F)  { fuzzReply(f, Messages{}, Anthropic) }
func FuzzGeminiReply(f *testing.F)    { fuzzReply(f, GenerateContent{}, Gemini) }
func FuzzVertexReply(f *testing.F)    { fuzzReply(f, GenerateContent{}, Vertex) }
func FuzzConverseReply(f *testing.F)  { fuzzReply(f, Converse{}, Bedrock) }

func fuzzReply(f *testing.F, w Wire, seeds ...string) {
	f.Helper()
	for _, name := range seeds {
		script := must.Value(os.ReadFile(filepath.Join("testdata", "replies", name+".txt")))(f)
		for line := range strings.Lines(string(script)) {
			if line[0] == '{' {
				f.Add(200, []byte(line))
				f.Add(429, []byte(line))
			}
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 {
			status = 200
		}
		if jsonbytes.Valid(body) != json.Valid(body) {
			t.Errorf("jsonbytes.Valid(%q) = %v", body, jsonbytes.Valid(body))
		}
		checkReference(t, w, body)
		r, err := ParseReply(w, Known{}, now, status, nil, body)
		if r != nil && r.Usage != nil {
			u := r.Usage
			if u.PromptTokens < 0 || u.CompletionTokens < 0 || u.TotalTokens < 0 || u.Cost != nil && *u.Cost < 0 {
				t.Errorf("negative usage %+v of %q", u, body)
			}
		}
		checkKept(t, w, status, body)
		if err == nil {
			if status/100 != 2 || r == nil || strings.TrimSpace(r.Text) == "" || !json.Valid(body) {
				t.Errorf("success of %d %q: %+v", status, body, r)
			}
			return
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class < Capacity || e.Class > Fatal || e.Reason == "" || e.Err == nil {
			t.Fatalf("error of %d %q: %#v", status, body, err)
		}
		if e.RetryAfter < 0 || e.RetryAfter > maxWait || e.Reset < 0 || e.Reset > maxWait {
			t.Errorf("wait out of bounds: %+v", e)
		}
		if text := e.Error(); !utf8.ValidString(text) || len(text) > 8*excerpt.BytesMax {
			t.Errorf("error text of %d bytes: %q", len(text), text)
		}
		if _, err := json.Marshal(e.Facts); err != nil {
			t.Errorf("facts %v: %v", e.Facts, err)
		}
	})
}

// checkKept: whatever the body, each part is one JSON value on one line that a result can hold, and keeping parts other
// than calls changes nothing else.
func checkKept(t *testing.T, w Wire, status int, body []byte) {
	t.Helper()
	const all = 1<<len(keepNames) - 1
	r, err := ParseReply(w, Known{Keep: all}, now, status, nil, body)
	if err != nil {
		return
	}
	for name, value := range r.Values(all) {
		if !jsonbytes.ValidDepth(value, valueDepthMax) || bytes.ContainsAny(value, "\n\r") {
			t.Errorf("%s of %q: %q", name, body, value)
		}
	}
	if r.Text == "" && len(r.calls()) == 0 {
		t.Errorf("an empty success of %q", body)
	}
	plain, err := ParseReply(w, Known{Keep: all &^ KeepToolCalls}, now, status, nil, body)
	if bare, again := ParseReply(w, Known{}, now, status, nil, body); (err == nil) != (again == nil) || err == nil && plain.Text != bare.Text {
		t.Errorf("keeping parts changes %q: %v, %v", body, err, again)
	}
}
