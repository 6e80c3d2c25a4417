package llmtest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// dialect is a wire format seen from the server.
type dialect interface {
	read(c *call) error
	answer(c *call, text string) []byte
	fault(f failure) []byte
}

// withHeader is a dialect whose replies have headers of their own.
type withHeader interface {
	writeHeader(h http.Header, c *call, f failure)
}

var (
	errStream     = errors.New("stream: not supported")
	errNoMessages = errors.New("messages: at least one is required")
	errNoModel    = errors.New("model: required")
)

type openAI struct{}

func (openAI) read(c *call) error {
	var v struct {
		Model          string    `json:"model"`
		Messages       []message `json:"messages"`
		Stream         bool      `json:"stream"`
		ResponseFormat struct {
			JSONSchema struct {
				Schema any `json:"schema"`
			} `json:"json_schema"`
		} `json:"response_format"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	c.Model, c.schema = v.Model, v.ResponseFormat.JSONSchema.Schema
	for _, m := range v.Messages {
		if m.Role == "system" || m.Role == "developer" {
			c.System += m.text()
		}
	}
	return c.finish(v.Messages, v.Stream)
}

// finish reads the messages and checks what all dialects with messages demand.
func (c *call) finish(messages []message, stream bool) error {
	switch {
	case c.Model == "":
		return errNoModel
	case len(messages) == 0:
		return errNoMessages
	case stream:
		return errStream
	}
	turns := make([]turn, len(messages))
	for i, m := range messages {
		var err error
		if turns[i], err = m.turn(); err != nil {
			return err
		}
	}
	c.see(turns)
	return nil
}

func (openAI) answer(c *call, text string) []byte {
	prompt, completion := tokens(c, text)
	return fmt.Appendf(nil, `{"id":%s,"object":"chat.completion","created":1700000000,"model":%s,`+
		`"choices":[{"index":0,"message":{"role":"assistant","content":%s,"refusal":null},"logprobs":null,"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`,
		encode(c.id("chatcmpl")), encode(c.Model), encode(text), prompt, completion, prompt+completion)
}

func (openAI) fault(f failure) []byte {
	kind, code := "server_error", "null"
	switch {
	case f.status == http.StatusTooManyRequests:
		kind, code = "requests", `"rate_limit_exceeded"`
	case f.status == http.StatusUnauthorized:
		kind, code = "invalid_request_error", `"invalid_api_key"`
	case f.status < 500:
		kind = "invalid_request_error"
	}
	return fmt.Appendf(nil, `{"error":{"code":%s,"message":%s,"param":null,"type":%q}}`, code, encode(f.message), kind)
}

type anthropic struct{}

func (anthropic) read(c *call) error {
	var v struct {
		Model        string          `json:"model"`
		MaxTokens    int             `json:"max_tokens"`
		System       json.RawMessage `json:"system"`
		Messages     []message       `json:"messages"`
		Stream       bool            `json:"stream"`
		OutputConfig struct {
			Format struct {
				Schema any `json:"schema"`
			} `json:"format"`
		} `json:"output_config"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	c.Model, c.schema = cmp.Or(c.Model, v.Model), v.OutputConfig.Format.Schema
	c.System = message{Content: v.System}.text()
	if v.MaxTokens < 1 {
		return errors.New("max_tokens: required")
	}
	return c.finish(v.Messages, v.Stream)
}

func (anthropic) answer(c *call, text string) []byte {
	prompt, completion := tokens(c, text)
	return fmt.Appendf(nil, `{"content":[{"text":%s,"type":"text"}],"id":%s,"model":%s,"role":"assistant",`+
		`"stop_reason":"end_turn","stop_sequence":null,"stop_details":null,"container":null,"diagnostics":null,"type":"message",`+
		`"usage":{"input_tokens":%d,"output_tokens":%d,"output_tokens_details":null,"cache_creation":null,"cache_creation_input_tokens":null,`+
		`"cache_read_input_tokens":null,"server_tool_use":null,"service_tier":null,"speed":null,"inference_geo":null}}`,
		encode(text), encode(c.id("msg")), encode(c.Model), prompt, completion)
}

// anthropicFaults are the error types of the statuses that have their own.
var anthropicFaults = map[int]string{
	http.StatusTooManyRequests: "rate_limit_error",
	http.StatusUnauthorized:    "authentication_error",
	http.StatusForbidden:       "permission_error",
	http.StatusNotFound:        "not_found_error",
	529:                        "overloaded_error",
}

func (anthropic) fault(f failure) []byte {
	kind := anthropicFaults[f.status]
	switch {
	case kind != "":
	case f.status < 500:
		kind = "invalid_request_error"
	default:
		kind = "api_error"
	}
	return fmt.Appendf(nil, `{"error":{"message":%s,"type":%q},"request_id":"req_%08x","type":"error"}`, encode(f.message), kind, uint32(hash(f.message)))
}

// encode cannot fail: it is given plain values.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
