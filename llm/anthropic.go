package llm

import (
	"net/http"
	"strconv"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
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
	dst = jsonbytes.AppendString(dst, r.Model)
	dst = append(dst, `,"max_tokens":`...)
	limit := anthropicMaxTokens
	if r.MaxTokens != nil {
		limit = *r.MaxTokens
	}
	dst = strconv.AppendInt(dst, int64(limit), 10)
	if system := r.systemPrompt(schema.AnthropicOutput); system != "" {
		dst = append(dst, `,"system":`...)
		dst = jsonbytes.AppendString(dst, system)
	}
	dst = append(dst, `,"messages":[`...)
	dst = appendTurns(dst, r, "assistant", appendMessage)
	dst = append(dst, ']')
	if r.Temperature != nil {
		dst = append(dst, `,"temperature":`...)
		dst = jsonbytes.AppendFloat(dst, *r.Temperature)
	}
	if r.Schema != nil && r.Schema.Within(schema.AnthropicOutput) {
		dst = append(dst, `,"output_config":{"format":{"type":"json_schema","schema":`...)
		dst = append(dst, r.Schema.Source()...)
		dst = append(dst, "}}"...)
	}
	return append(dst, '}')
}

// messagesReply is what matters of a reply, as far as it was reported.
type messagesReply struct {
	content, fault []byte
	usage          messagesUsage
}

type messagesUsage struct {
	tally
	lifetimes []byte
}

func (v *messagesReply) read(body []byte, r *Reply) {
	for key, value := range jsonbytes.Members(body) {
		switch string(key) {
		case "id":
			readString(&r.ID, value)
		case "model":
			readString(&r.Model, value)
		case "stop_reason":
			readString(&r.FinishReason, value)
		case "content":
			v.content = value
		case "usage":
			v.usage.read(value)
		case "error":
			v.fault = value
		}
	}
}

func (u *messagesUsage) read(raw []byte) {
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "input_tokens":
			u.prompt = countOf(value)
		case "output_tokens":
			u.completion = countOf(value)
		case "cache_creation_input_tokens":
			u.written = countOf(value)
		case "cache_creation":
			u.lifetimes = value
		case "cache_read_input_tokens":
			u.cached = countOf(value)
		case "output_tokens_details":
			u.reasoning = countOf(jsonbytes.Find(value, "thinking_tokens"))
		}
	}
}

func (u *messagesUsage) usage() *Usage {
	u.readLifetimes(u.lifetimes)
	// Here input_tokens leaves out what was read from or written to a cache.
	u.prompt = u.prompt.plus(u.cached).plus(u.written)
	return u.tally.usage()
}

// messagesEnds are the documented stop reasons. Null is not one of them: it
// is in a message that has not ended yet. Neither is a missing one: Ollama
// leaves the member out when the model's process has ended.
var messagesEnds = map[string]Finish{
	"end_turn":                      FinishStop,
	"stop_sequence":                 FinishStop,
	"max_tokens":                    FinishLength,
	"model_context_window_exceeded": FinishLength,
	"refusal":                       FinishRefusal,
	"tool_use":                      FinishUnfinished, // the model may do without the tool next time
	"pause_turn":                    FinishUnfinished, // a server tool took too long
	"compaction":                    FinishDeadEnd,    // the prompt is above the threshold for it
}

// ReadReply implements [Wire].
func (Messages) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v messagesReply
	v.read(body, r)
	r.Usage = v.usage.usage()
	if isError(v.fault) || !isReported(v.content) {
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	}
	r.Text = joinParts(v.content, "text")
	o.Finish = endOf(messagesEnds, r.FinishReason)
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}
