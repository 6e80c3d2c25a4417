package llm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/llm-stage/stage/llm"
)

// echo answers a call of the chat completions API with its last message.
func echo(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Messages []struct{ Content string }
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.Messages) == 0 {
		http.Error(w, `{"error": {"message": "no messages"}}`, http.StatusBadRequest)
		return
	}
	content, _ := json.Marshal("You said: " + in.Messages[len(in.Messages)-1].Content)
	_, _ = fmt.Fprintf(w, `{"model": "echo-1", "choices": [{"message": {"content": %s}, "finish_reason": "stop"}],
		"usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}}`, content)
}

// A whole small job: one question, asked again while the server has no room for it.
func Example() {
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 1 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		echo(w, r)
	}))
	defer server.Close()

	client, err := llm.NewProvider(llm.OpenAI, llm.ProviderConfig{BaseURL: server.URL, Model: "echo-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	prepared, err := client.Prepare(&llm.Request{Prompt: "Hello."})
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		exchange, err := client.Do(context.Background(), prepared)
		if e, ok := errors.AsType[*llm.Error](err); ok && e.Class == llm.Capacity {
			fmt.Printf("%v: wait %v\n", e.Class, e.RetryAfter)
			continue // after the wait
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(exchange.Reply.Text)
		fmt.Println(exchange.Reply.Usage.TotalTokens, "tokens")
		return
	}
	// Output:
	// capacity: wait 2s
	// You said: Hello.
	// 14 tokens
}
