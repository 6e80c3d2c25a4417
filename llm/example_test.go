package llm_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/schema"
)

func Example() {
	// A server that refuses the first call for want of room.
	server, err := llmtest.New(llmtest.Config{Script: llmtest.Steps(
		llmtest.Step{Status: 429, Header: map[string]string{"Retry-After": "2"}},
	)})
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
	prepared, err := client.Prepare(&llm.Request{Prompt: "Say hello."})
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
	// Answer fc8a6122 to: Say hello.
	// 14 tokens
}

func ExampleParseReply() {
	body := []byte(`{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"insufficient_quota"}}`)
	_, err := llm.ParseReply(llm.ChatCompletions{}, llm.Known{}, time.Now(), http.StatusTooManyRequests, nil, body)
	e, _ := errors.AsType[*llm.Error](err)
	fmt.Println(e.Class, e)
	// Output:
	// fatal 429 insufficient_quota: You exceeded your current quota. (check credit and spending limits at the provider)
}

func ExampleValidateReply() {
	s, err := schema.Parse([]byte(`{"type": "object", "properties": {"stars": {"type": "integer"}}, "required": ["stars"]}`), "reply.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = llm.ValidateReply(s, `{"stars": "five"}`)
	fmt.Println(llm.Complaint(err))
	value, err := llm.ValidateReply(s, "```json\n{\"stars\": 5}\n```")
	fmt.Println(string(value), err)
	// Output:
	// Your reply does not satisfy the schema: at '/stars': got string, want integer. Answer again with one JSON value that satisfies the schema, and nothing else.
	// {"stars":5} <nil>
}
