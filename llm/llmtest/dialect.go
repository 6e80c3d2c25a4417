package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// dialect is a wire format seen from the server.
type dialect interface {
	read(c *call) error
	answer(c *call, text string) []byte
	fault(f failure) []byte
}

// message is a message of either dialect; its content is a text or a list of
// parts.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

func (m message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(m.Content, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
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

// finish takes the last message for the prompt and checks what both dialects
// demand.
func (c *call) finish(messages []message, stream bool) error {
	switch {
	case c.Model == "":
		return errNoModel
	case len(messages) == 0:
		return errNoMessages
	case stream:
		return errStream
	}
	c.Prompt = messages[len(messages)-1].text()
	return nil
}

type chatAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   chatUsage    `json:"usage"`
}

type chatChoice struct {
	Index        int         `json:"index"`
	Message      chatMessage `json:"message"`
	FinishReason string      `json:"finish_reason"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func (openAI) answer(c *call, text string) []byte {
	prompt, completion := tokens(c, text)
	return encode(chatAnswer{
		ID: c.id("chatcmpl"), Object: "chat.completion", Created: 1_700_000_000, Model: c.Model,
		Choices: []chatChoice{{
			Message:      chatMessage{Role: "assistant", Content: text},
			FinishReason: "stop",
		}},
		Usage: chatUsage{Prompt: prompt, Completion: completion, Total: prompt + completion},
	})
}

func (openAI) fault(f failure) []byte {
	kind, code := "server_error", any(nil)
	switch f.status {
	case http.StatusTooManyRequests:
		kind, code = "requests", "rate_limit_exceeded"
	case http.StatusUnauthorized:
		kind, code = "invalid_request_error", "invalid_api_key"
	default:
		if f.status < 500 {
			kind = "invalid_request_error"
		}
	}
	return encode(map[string]any{
		"error": map[string]any{"message": f.message, "type": kind, "param": nil, "code": code},
	})
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
	c.Model, c.schema = v.Model, v.OutputConfig.Format.Schema
	c.System = message{Content: v.System}.text()
	if v.MaxTokens < 1 {
		return errors.New("max_tokens: required")
	}
	return c.finish(v.Messages, v.Stream)
}

func (anthropic) answer(c *call, text string) []byte {
	prompt, completion := tokens(c, text)
	return encode(map[string]any{
		"id": c.id("msg"), "type": "message", "role": "assistant", "model": c.Model,
		"content":     []any{map[string]any{"type": "text", "text": text}},
		"stop_reason": "end_turn", "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": prompt, "output_tokens": completion},
	})
}

func (anthropic) fault(f failure) []byte {
	kind := "api_error"
	switch f.status {
	case http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case http.StatusUnauthorized:
		kind = "authentication_error"
	case http.StatusForbidden:
		kind = "permission_error"
	case http.StatusNotFound:
		kind = "not_found_error"
	case 529:
		kind = "overloaded_error"
	default:
		if f.status < 500 {
			kind = "invalid_request_error"
		}
	}
	return encode(map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": f.message}})
}

// encode cannot fail: it is given plain values.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
