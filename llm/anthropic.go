package llm

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// anthropicMaxTokens is sent where the request sets no limit: the format demands one.
const anthropicMaxTokens = 4096

// Messages is Anthropic's /messages.
type Messages struct {
	// Bedrock is set at the addresses of Amazon Bedrock, which take the key as a bearer
	// token in place of Anthropic's own header, and refuse the schema of a reply, so that
	// it is in the system prompt there.
	Bedrock bool
	// Vertex is where Vertex AI has the models. The model is in the path of a request
	// there, and the version in its body. The zero value is Anthropic's own API, or one
	// like it.
	Vertex VertexAI
}

var _ Wire = Messages{}

// Path implements [Wire].
func (w Messages) Path(model string) string {
	if w.Vertex.isZero() {
		return "/messages"
	}
	return w.Vertex.modelPath(model, "rawPredict")
}

// SetHeader implements [Wire].
func (w Messages) SetHeader(h http.Header, key string) {
	if !w.Vertex.isZero() {
		GenerateContent{}.SetHeader(h, key)
		return
	}
	h.Set("Anthropic-Version", "2023-06-01")
	switch {
	case key == "":
	case w.Bedrock:
		h.Set("Authorization", "Bearer "+key)
	default:
		h.Set("X-Api-Key", key)
	}
}

// AppendRequest implements [Wire].
func (w Messages) AppendRequest(dst []byte, r *Request) []byte {
	if w.Vertex.isZero() {
		dst = jsonbytes.AppendString(append(dst, `{"model":`...), r.Model)
	} else {
		dst = append(dst, `{"anthropic_version":"`+vertexVersion+`"`...)
	}
	dst = append(dst, `,"max_tokens":`...)
	limit := anthropicMaxTokens
	if r.MaxTokens != nil {
		limit = *r.MaxTokens
	}
	dst = strconv.AppendInt(dst, int64(limit), 10)
	instructions, turns := leadingSystem(r.Messages)
	if system := r.systemPrompt(w.dialect(), instructions); system != "" {
		dst = append(dst, `,"system":`...)
		dst = jsonbytes.AppendString(dst, system)
	}
	dst = append(dst, `,"messages":[`...)
	dst = anthropicTurns.appendTurns(dst, r, turns)
	dst = append(dst, ']')
	dst = r.Options.appendAnthropic(appendNumber(dst, "temperature", r.Temperature))
	return append(appendAnthropicTools(appendOutputConfig(dst, r, w.dialect()), r), '}')
}

// dialect is what the models accept as the schema of a reply.
func (w Messages) dialect() schema.Dialect {
	if w.Bedrock || !w.Vertex.isZero() {
		return schema.PromptOnly
	}
	return schema.AnthropicOutput
}

// appendOutputConfig appends how much the model should reason and what the reply is to look
// like, if the request says so.
func appendOutputConfig(dst []byte, r *Request, d schema.Dialect) []byte {
	const open = `,"output_config":{`
	end := len(dst) + len(open)
	dst = append(dst, open...)
	if effort := r.Options.effort(); effort != "" {
		dst = jsonbytes.AppendString(append(dst, `"effort":`...), effort)
	}
	if s := r.schema(); s != nil && s.Within(d) {
		if len(dst) > end {
			dst = append(dst, ',')
		}
		dst = append(dst, `"format":{"type":"json_schema","schema":`...)
		dst = append(append(dst, s.Source()...), '}')
	}
	if len(dst) == end {
		return dst[:end-len(open)]
	}
	return append(dst, '}')
}

func (Messages) check(r *Request) error {
	return cmp.Or(r.Options.anthropicPlaces(), checkLeadingSystem(r.Messages),
		checkHistory(r.Messages, true, false))
}

func (w Messages) media() *mediaRules {
	if w.Vertex.isZero() {
		return &anthropicMedia
	}
	return &vertexAnthropicMedia
}

// messagesEnds are the documented stop reasons. Null is not one of them: it is in a
// message that has not ended yet. Neither is a missing one: Ollama leaves the member out
// when the model's process has ended.
var messagesEnds = map[string]finish{
	"end_turn":                      finishStop,
	"stop_sequence":                 finishStop,
	"max_tokens":                    finishLength,
	"model_context_window_exceeded": finishLength,
	"refusal":                       finishRefusal,
	// Unless its calls are kept, the model may do without the tool next time.
	"tool_use":   finishUnfinished,
	"pause_turn": finishUnfinished, // a server tool took too long
	"compaction": finishDeadEnd,    // the prompt is above the threshold for it
}

// readReply implements [Wire].
func (Messages) readReply(body []byte, r *Reply, o *ending) {
	var id, model, reason, content, fault, input, output, written, minutes, hour, cached,
		thinking []byte
	readUsage := func(usage []byte) {
		pick(usage, at("input_tokens", &input), at("output_tokens", &output),
			at("cache_read_input_tokens", &cached),
			at("cache_creation_input_tokens", &written),
			each("cache_creation", func(value []byte) { pickLifetimes(value, &minutes, &hour) }),
			each("output_tokens_details",
				func(details []byte) { pick(details, at("thinking_tokens", &thinking)) }))
	}
	pick(body, at("id", &id), at("model", &model), at("stop_reason", &reason),
		at("content", &content),
		each("usage", readUsage), at("error", &fault))
	t := tally{
		completion: countOf(output), cached: countOf(cached), written: countOf(written),
		reasoning: countOf(thinking),
	}
	t.readLifetimes(minutes, hour)
	// Here input_tokens leaves out the tokens read from or written to a cache.
	t.prompt = countOf(input).plus(t.cached).plus(t.written)
	r.ID, r.Model, r.FinishReason, r.Usage = textOf(id), textOf(model), textOf(reason), t.usage()
	if isError(fault) || !isReported(content) {
		o.malformed(body)
		return
	}
	r.Text = joinParts(content, "text")
	o.Finish = endOf(messagesEnds, r.FinishReason)
	if o.Known.Keep.Has(KeepToolCalls) {
		if r.keepCalls(messageCalls(content)); len(r.calls()) > 0 && r.FinishReason == "tool_use" {
			o.Finish = finishStop
		}
	}
	if blank(r.Text) && len(r.calls()) == 0 {
		o.Form = formEmpty
	}
}
