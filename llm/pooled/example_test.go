package pooled_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// newServer returns a server of the chat completions API that repeats what it is sent. It
// refuses the first two calls.
func newServer() *httptest.Server {
	var calls atomic.Int32
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) <= 2 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		var in struct {
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.Messages) == 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		content, _ := json.Marshal("You said: " + in.Messages[0].Content)
		_, _ = fmt.Fprintf(w, `{"choices": [{"message": {"content": %s}, "finish_reason": "stop"}]}`, content)
	}))
}

// A whole small job: each prompt is answered, although the server refuses the first calls.
func Example() {
	server := newServer()
	defer server.Close()
	client, err := llm.NewProvider(llm.OpenAI, llm.ProviderConfig{BaseURL: server.URL, Model: "echo-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(4))
	if err != nil {
		fmt.Println(err)
		return
	}
	call := func(ctx context.Context, p *llm.Prepared, _ pool.Attempt) (*llm.Reply, pool.Verdict) {
		x, err := client.Do(ctx, p)
		return x.Reply, pooled.Verdict(x, err)
	}
	calls, err := pool.New(pool.Config{Size: 4, Law: law, Retry: pool.DefaultRetry()}, call)
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- calls.Run(context.Background()) }()

	var prompts []*llm.Prepared
	for _, text := range []string{"Hello.", "Goodbye."} {
		p, err := client.Prepare(&llm.Request{Prompt: text})
		if err != nil {
			fmt.Println(err)
			return
		}
		prompts = append(prompts, p)
	}
	results, err := calls.ExecuteBatch(context.Background(), prompts)
	for _, r := range results {
		fmt.Println(r.Out.Text, r.Err)
	}
	calls.Finish()
	fmt.Println(err, <-ended)
	// Output:
	// You said: Hello. <nil>
	// You said: Goodbye. <nil>
	// <nil> <nil>
}
