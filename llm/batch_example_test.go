package llm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/llm-stage/stage/llm"
)

// Many prompts in one request, one of which the server rejects.
func ExampleBatch() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("rude")) {
			http.Error(w, `{"error": {"message": "be nice"}}`, http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		echo(w, r)
	}))
	defer server.Close()
	client, err := llm.NewProvider(llm.OpenAI, llm.ProviderConfig{BaseURL: server.URL, Model: "echo-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	cfg := llm.DefaultBatch()
	cfg.RPM = nil // this server has no limit of calls a minute
	b, err := llm.NewBatch(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	reply, err := b.Do(context.Background(), client, &llm.BatchRequest{
		Prompts:     []string{"Say hello.", "Say something rude.", "Say goodbye."},
		MaxParallel: 2,
	})
	if e, ok := errors.AsType[*llm.RateLimitedError](err); ok {
		fmt.Println("retry after", e.RetryAfter)
		return
	}
	if err != nil { // nothing was answered
		fmt.Println(err)
		return
	}
	for _, content := range reply.Successes() {
		fmt.Println(content)
	}
	for _, fault := range reply.ErrorReport() {
		fmt.Printf("prompt %d: %s\n", fault.Index, fault.Reason)
	}
	fmt.Println(reply.TotalTokens.TotalTokens, "tokens")
	// Output:
	// You said: Say hello.
	// You said: Say goodbye.
	// prompt 1: api_call_failed
	// 28 tokens
}
