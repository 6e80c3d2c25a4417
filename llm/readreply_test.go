package llm_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// A reply that came in a batch is judged as the same reply to a live call is.
func TestReadReplyJudgesAsALiveCall(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		body   string
	}{
		{"an answer", 200, `{"id":"c1","model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`},
		{"the key in the answer", 200, `{"model":"m","choices":[{"message":{"content":"it is ` + secret + `!"},"finish_reason":"stop"}]}`},
		{"cut at the limit", 200, `{"choices":[{"message":{"content":"hi"},"finish_reason":"length"}],"usage":{"completion_tokens":2}}`},
		{"a page", 200, `<html><title>Bad gateway</title></html>`},
		{"empty", 200, ``},
		{"reasoning before the answer", 200, `{"choices":[{"message":{"content":"<think>x</think>hi"},"finish_reason":"stop"}]}`},
		{"reasoning alone", 200, `{"choices":[{"message":{"content":"<think>x"},"finish_reason":"stop"}]}`},
		{"not UTF-8", 200, "{\"choices\":[{\"message\":{\"content\":\"caf\xe9\"},\"finish_reason\":\"stop\"}]}"},
		{"a byte order mark", 200, "\ufeff" + `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`},
		{"too long", 200, `{"choices":[{"message":{"content":"` + strings.Repeat("x", 2000) + `"}}]}`},
		{"limit", 429, `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`},
		{"bad request", 400, `{"error":{"message":"no ` + secret + `","type":"invalid_request_error"}}`},
		{"server", 500, `oops`},
		{"bad key", 401, `{"error":{"message":"bad key"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer server.Close()
			client := newClient(t, llm.OpenAI, llm.ProviderConfig{BaseURL: server.URL + "/v1", Model: "m", APIKey: redact.NewSecret(secret), MaxReplyBytes: 1500})
			p := must.Value(client.Prepare(&llm.Request{Prompt: "hello"}))(t)
			got, gotErr := client.ReadReply(p, tt.status, []byte(tt.body)) // first: a success proves the client
			want, wantErr := client.Do(t.Context(), p)
			want.Latency = 0
			if !reflect.DeepEqual(got, want) {
				t.Errorf("exchange:\n%+v, want\n%+v", got, want)
			}
			one, _ := errors.AsType[*llm.Error](gotErr)
			other, _ := errors.AsType[*llm.Error](wantErr)
			if (one == nil) != (other == nil) {
				t.Fatalf("error %v, want %v", gotErr, wantErr)
			}
			if one != nil && other != nil && other.Facts["content_type"] != nil { // a line has no headers
				other.Facts["content_type"] = ""
			}
			if one != nil && !reflect.DeepEqual(one, other) {
				t.Errorf("error\n%+v, want\n%+v", one, other)
			}
			holdsNoKey(t, tt.name, got, gotErr)
		})
	}
}
