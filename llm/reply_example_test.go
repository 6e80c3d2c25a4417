package llm_test

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/schema"
)

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
