package llm

import (
	"encoding/json"
	"net/http"
	"strings"
)

// anthropicMaxTokens is sent where the request sets no limit: the format
// demands one.
const anthropicMaxTokens = 4096

// Messages is Anthropic's /messages.
type Messages struct{}

var _ Wire = Messages{}

// Path implements [Wire].
func (Messages) Path(string) string { return "/messages" }

// SetHeader implements [Wire].
func (Messages) SetHeader(h http.Header, key string) {
	h.Set("Anthropic-Version", "2023-06-01")
	if key != "" {
		h.Set("X-Api-Key", key)
	}
}

// AppendRequest implements [Wire].
func (Messages) AppendRequest(dst []byte, r *Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = appendString(dst, r.Model)
	dst = append(dst, `,"max_tokens":`...)
	limit := anthropicMaxTokens
	if r.MaxTokens != nil {
		limit = *r.MaxTokens
	}
	dst = appendInt(dst, limit)
	if system := messagesSystem(r); system != "" {
		dst = append(dst, `,"system":`...)
		dst = appendString(dst, system)
	}
	dst = append(dst, `,"messages":[`...)
	dst = appendTurns(dst, r)
	dst = append(dst, ']')
	if r.Temperature != nil {
		dst = append(dst, `,"temperature":`...)
		dst = appendFloat(dst, *r.Temperature)
	}
	if r.Schema != nil && r.Schema.closed {
		dst = append(dst, `,"output_config":{"format":{"type":"json_schema","schema":`...)
		dst = append(dst, r.Schema.source...)
		dst = append(dst, "}}"...)
	}
	return append(dst, '}')
}

// messagesSystem returns the system prompt, with the schema in words where it
// is not one that the format's own member takes.
func messagesSystem(r *Request) string {
	switch {
	case r.Schema == nil || r.Schema.closed:
		return r.System
	case r.System == "":
		return r.Schema.instruction()
	}
	return r.System + "\n\n" + r.Schema.instruction()
}

type messagesReply struct {
	ID         string `json:"id"`
	Type       string `json:"type"`
	Model      string `json:"model"`
	StopReason string `json:"stop_reason"`
	Content    *[]struct {
		Type string    `json:"type"`
		Text looseText `json:"text"`
	} `json:"content"`
	Usage *struct {
		Input      count `json:"input_tokens"`
		Output     count `json:"output_tokens"`
		CacheWrite count `json:"cache_creation_input_tokens"`
		CacheRead  count `json:"cache_read_input_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// ReadReply implements [Wire].
func (Messages) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v messagesReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model, r.FinishReason = v.ID, v.Model, v.StopReason
	if u := v.Usage; u != nil {
		// Here input_tokens leaves out what was read from or written to a cache.
		input := u.Input
		input.n += u.CacheRead.n + u.CacheWrite.n
		if r.Usage = usageOf(input, u.Output, count{}); r.Usage != nil {
			r.Usage.CachedTokens = u.CacheRead.pointer()
		}
	}
	if isObject(v.Error) || v.Content == nil {
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	}
	var text strings.Builder
	for _, part := range *v.Content {
		if part.Type == "text" {
			text.WriteString(string(part.Text))
		}
	}
	r.Text = text.String()
	switch v.StopReason {
	case "max_tokens", "model_context_window_exceeded":
		o.Finish = FinishLength
	case "refusal":
		o.Finish = FinishRefusal
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}
