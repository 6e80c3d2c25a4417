package llm

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// Responses is OpenAI's /responses. Replies are not stored at the provider
// unless the extra body says "store": true.
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
	dst = appendTurns(dst, r, "assistant", appendMessage)
	dst = append(dst, `],"store":false`...)
	if r.Temperature != nil {
		dst = append(dst, `,"temperature":`...)
		dst = jsonbytes.AppendFloat(dst, *r.Temperature)
	}
	if r.MaxTokens != nil {
		dst = append(dst, `,"max_output_tokens":`...)
		dst = strconv.AppendInt(dst, int64(*r.MaxTokens), 10)
	}
	if r.Schema != nil {
		dst = append(dst, `,"text":{"format":{"type":"json_schema","name":"reply","strict":`...)
		dst = strconv.AppendBool(dst, r.Schema.Within(schema.OpenAIStrict))
		dst = append(dst, `,"schema":`...)
		dst = append(dst, r.Schema.Source()...)
		dst = append(dst, "}}"...)
	}
	return append(dst, '}')
}

// responsesReply is what matters of a reply, as far as it was reported.
type responsesReply struct {
	status                    string
	ended                     bool // status is there, if only as null
	output, incomplete, fault []byte
	usage                     openAIUsage
}

func (v *responsesReply) read(body []byte, r *Reply) {
	for key, value := range jsonbytes.Members(body) {
		switch string(key) {
		case "id":
			readString(&r.ID, value)
		case "model":
			readString(&r.Model, value)
		case "status":
			v.ended = true
			readString(&v.status, value)
		case "incomplete_details":
			v.incomplete = value
		case "output":
			v.output = value
		case "usage":
			v.usage.read(value, &responsesUsage)
		case "error":
			v.fault = value
		}
	}
}

// responsesEnds are the documented reasons of an incomplete response. The rest,
// and none, are not taken for the token limit.
var responsesEnds = map[string]Finish{
	"max_output_tokens": FinishLength,
	"content_filter":    FinishFilter,
}

// clientCalls are the items of output that wait for the caller to do something,
// which the stage does not. Other calls the provider has done itself, and those of
// shell_call and tool_search_call that do not say that they are left to the caller.
var clientCalls = map[string]bool{
	"function_call":        true,
	"custom_tool_call":     true,
	"computer_call":        true,
	"local_shell_call":     true,
	"apply_patch_call":     true,
	"mcp_approval_request": true,
}

// ReadReply implements [Wire].
func (Responses) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v responsesReply
	v.read(body, r)
	r.FinishReason, r.Usage = v.status, v.usage.usage()
	switch {
	case isError(v.fault) || !isReported(v.output):
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case v.status == "failed" || v.status == "cancelled":
		o.Fault = &Fault{Code: v.status}
		return
	case v.status == "queued" || v.status == "in_progress": // the extra body asked for "background"
		o.Form = FormMalformed
		return
	case v.status == "incomplete":
		reason := ""
		readString(&reason, jsonbytes.Find(v.incomplete, "reason"))
		r.FinishReason = cmp.Or(reason, v.status)
		o.Finish = endOf(responsesEnds, r.FinishReason)
	case v.status != "completed" && v.ended:
		o.Finish = FinishUnfinished
	}
	var out responsesOutput
	out.read(v.output)
	r.Text = strings.Join(out.texts, "")
	switch {
	case out.refused:
		o.Finish = FinishRefusal
	case out.unfinished != "" && o.Finish == FinishStop:
		r.FinishReason, o.Finish = out.unfinished, FinishUnfinished
	}
	_, some := firstElement(v.output)
	switch {
	case !some && o.Finish == FinishStop:
		o.Form = FormNoChoices
	case blank(r.Text):
		o.Form = FormEmpty
	}
}

// responsesOutput is what matters of a list of output.
type responsesOutput struct {
	texts      []string // of the answer
	refused    bool
	unfinished string // what keeps the output from being a whole answer
}

func (v *responsesOutput) read(output []byte) {
	for item := range jsonbytes.Elements(output) {
		var kind, status, phase, environment, execution string
		var content []byte
		for key, value := range jsonbytes.Members(item) {
			switch string(key) {
			case "type":
				readString(&kind, value)
			case "status":
				readString(&status, value)
			case "phase":
				readString(&phase, value)
			case "environment":
				environment, _ = typed(value, "")
			case "execution":
				readString(&execution, value)
			case "content":
				content = value
			}
		}
		switch {
		case kind != "message":
			if clientCalls[kind] || kind == "shell_call" && environment == "local" || kind == "tool_search_call" && execution == "client" {
				v.unfinished = kind
			}
			continue
		case status == "incomplete": // vLLM, of a message whose end did not come, in a response that is completed
			v.unfinished = status
		}
		v.readParts(content, phase == "" || phase == "final_answer")
	}
}

// readParts reads the content of a message. Commentary on the way to the answer
// is no part of it.
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
