package llm_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
)

func ExampleBatch() {
	server, err := llmtest.New(llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if c.Prompt == "Say something rude." {
			return &llmtest.Step{Status: 400}
		}
		return nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	pipe, stop := server.Pipe()
	defer stop()
	client, err := llm.NewProvider(llm.Mock, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	b, err := llm.NewBatch(llm.DefaultBatch())
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
	// Answer fc8a6122 to: Say hello.
	// Answer daa778b7 to: Say goodbye.
	// prompt 1: api_call_failed
	// 30 tokens
}
