package llm

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// Responses is OpenAI's /responses. Replies are not stored at the provider unless the
// extra body says "store": true.
type Responses struct{}

var _ Wire = Responses{}

// Path implements [Wire].
func (Responses) Path(string) string { return "/responses" }

// SetHeader implements [Wire].
func (Responses) SetHeader(h http.Header, key string) {
	ChatCompletions{}.SetHeader(h, key)
}

// AppendRequest implements [Wire].
func (Responses) AppendRequest(dst []byte, r *Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = jsonbytes.AppendString(dst, r.Model)
	if r.System != "" {
		dst = append(dst, `,"instructions":`...)
		dst = jsonbytes.AppendString(dst, r.System)
	}
	dst = append(dst, `,"input":[`...)
	dst = responsesTurns.appendTurns(dst, r, r.Messages)
	dst = append(dst, `],"store":false`...)
	dst = r.Options.appendResponses(appendSettings(dst, r, "max_output_tokens"))
	if r.Schema != nil {
		dst = append(dst, `,"text":{"format":{"type":"json_schema","name":"reply","strict":`...)
		dst = appendSchema(dst, r, schema.OpenAIStrict)
	}
	return append(appendResponsesTools(dst, r), '}')
}

func (Responses) check(r *Request) error {
	return cmp.Or(r.Options.responsesPlaces(), checkHistory(r.Messages, false, false))
}

func (Responses) media() *mediaRules { return &responsesMedia }

// responsesEnds are the documented reasons of an incomplete response. The rest,
// and none, are not taken for the token limit.
var responsesEnds = map[string]finish{
	"max_output_tokens": finishLength,
	"content_filter":    finishFilter,
}

// clientCalls are the items of output that wait for the caller to act, which the stage
// does not do. The provider has already done other calls itself, and any shell_call and
// tool_search_call that is not marked as left to the caller.
var clientCalls = map[string]bool{
	"function_call":        true,
	"custom_tool_call":     true,
	"computer_call":        true,
	"local_shell_call":     true,
	"apply_patch_call":     true,
	"mcp_approval_request": true,
}

// readReply implements [Wire].
func (Responses) readReply(body []byte, r *Reply, o *ending) {
	v := readOpenAI(body, r, &responsesUsage)
	r.FinishReason = textOf(v.status)
	if isError(v.fault) || !isReported(v.output) {
		o.malformed(body)
		return
	}
	switch r.FinishReason {
	case "failed", "cancelled":
		o.Fault = &fault{Code: r.FinishReason}
		return
	case "queued", "in_progress": // the extra body asked for "background"
		o.Form = formMalformed
		return
	case "incomplete":
		r.FinishReason = cmp.Or(textOf(jsonbytes.Find(v.incomplete, "reason")), r.FinishReason)
		o.Finish = endOf(responsesEnds, r.FinishReason)
	case "completed":
	default:
		if v.status != nil { // if only as null
			o.Finish = finishUnfinished
		}
	}
	out := responsesOutput{callsKept: o.Known.Keep.Has(KeepToolCalls)}
	out.read(v.output)
	r.keepCalls(out.calls)
	r.Text = strings.Join(out.texts, "")
	switch {
	case out.refused:
		o.Finish = finishRefusal
	case out.unfinished != "" && o.Finish == finishStop:
		r.FinishReason, o.Finish = out.unfinished, finishUnfinished
	}
	_, some := firstElement(v.output)
	switch {
	case !some && o.Finish == finishStop:
		o.Form = formNoChoices
	case blank(r.Text) && len(out.calls) == 0:
		o.Form = formEmpty
	}
}

// responsesOutput is what matters of a list of output.
type responsesOutput struct {
	texts      []string // of the answer
	refused    bool
	unfinished string // what keeps the output from being a whole answer
	callsKept  bool   // the caller wants the calls
	calls      []ToolCall
}

func (v *responsesOutput) read(output []byte) {
	for item := range jsonbytes.Elements(output) {
		var kind, status, phase, environment, execution, content []byte
		pick(item, at("type", &kind), at("status", &status), at("phase", &phase),
			at("environment", &environment),
			at("execution", &execution), at("content", &content))
		if kind := textOf(kind); kind != "message" {
			place, _ := typed(environment, "")
			if v.callsKept && v.keepCall(kind, item) {
				continue
			}
			if clientCalls[kind] || kind == "shell_call" && place == "local" ||
				kind == "tool_search_call" && textOf(execution) == "client" {
				v.unfinished = kind
			}
			continue
		}
		if status := textOf(status); status == "incomplete" {
			// vLLM, of a message that was cut off, in a response that is completed.
			v.unfinished = status
		}
		phaseOf := textOf(phase)
		v.readParts(content, phaseOf == "" || phaseOf == "final_answer")
	}
}

// keepCall keeps a call of a function. It reports false for any other item.
func (v *responsesOutput) keepCall(kind string, item []byte) bool {
	call := ToolCall{ID: textOf(jsonbytes.Find(item, "call_id"))}
	ok := kind == "function_call" && call.read(item, "arguments") || kind == "custom_tool_call" &&
		call.read(item, "input")
	if ok {
		v.calls = append(v.calls, call)
	}
	return ok
}

// readParts reads the content of a message. Commentary before the answer is not part of it.
func (v *responsesOutput) readParts(content []byte, answer bool) {
	for part := range jsonbytes.Elements(content) {
		switch kind, text := typed(part, "text"); {
		case kind == "refusal":
			v.refused = v.refused || isRefusal(typed(part, "refusal"))
		case kind == "output_text" && answer:
			v.texts = append(v.texts, looseString(text))
		}
	}
}
