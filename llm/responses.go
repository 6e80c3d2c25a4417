package llm

import (
	"net/http"
	"strings"
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
	dst = appendString(dst, r.Model)
	if r.System != "" {
		dst = append(dst, `,"instructions":`...)
		dst = appendString(dst, r.System)
	}
	dst = append(dst, `,"input":[`...)
	dst = appendTurns(dst, r)
	dst = append(dst, `],"store":false`...)
	if r.Temperature != nil {
		dst = append(dst, `,"temperature":`...)
		dst = appendFloat(dst, *r.Temperature)
	}
	if r.MaxTokens != nil {
		dst = append(dst, `,"max_output_tokens":`...)
		dst = appendInt(dst, *r.MaxTokens)
	}
	if r.Schema != nil {
		dst = append(dst, `,"text":{"format":{"type":"json_schema","name":"reply","strict":`...)
		dst = appendBool(dst, r.Schema.strict)
		dst = append(dst, `,"schema":`...)
		dst = append(dst, r.Schema.source...)
		dst = append(dst, "}}"...)
	}
	return append(dst, '}')
}

// responsesReply is what matters of a reply, as far as it was told.
type responsesReply struct {
	status                    string
	output, incomplete, fault []byte
	usage                     responsesUsage
}

type responsesUsage struct{ input, output, total, cached, reasoning count }

func (v *responsesReply) read(body []byte, r *Reply) {
	for key, value := range members(body) {
		switch string(key) {
		case "id":
			readString(&r.ID, value)
		case "model":
			readString(&r.Model, value)
		case "status":
			readString(&v.status, value)
		case "incomplete_details":
			v.incomplete = value
		case "output":
			v.output = value
		case "usage":
			v.usage.read(value)
		case "error":
			v.fault = value
		}
	}
}

func (u *responsesUsage) read(raw []byte) {
	for key, value := range members(raw) {
		switch string(key) {
		case "input_tokens":
			u.input = countOf(value)
		case "output_tokens":
			u.output = countOf(value)
		case "total_tokens":
			u.total = countOf(value)
		case "input_tokens_details":
			u.cached = countOf(memberOf(value, "cached_tokens"))
		case "output_tokens_details":
			u.reasoning = countOf(memberOf(value, "reasoning_tokens"))
		}
	}
}

func (u *responsesUsage) usage() *Usage {
	usage := usageOf(u.input, u.output, u.total)
	if usage != nil {
		usage.CachedTokens, usage.ReasoningTokens = u.cached.pointer(), u.reasoning.pointer()
	}
	return usage
}

// ReadReply implements [Wire].
func (Responses) ReadReply(body []byte, r *Reply, o *Outcome) {
	if !validJSON(body) {
		o.Form = FormNotJSON
		return
	}
	var v responsesReply
	v.read(body, r)
	r.FinishReason, r.Usage = v.status, v.usage.usage()
	switch {
	case isObject(v.fault) || !isTold(v.output):
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
		r.FinishReason = ""
		readString(&r.FinishReason, memberOf(v.incomplete, "reason"))
		o.Finish = FinishLength
		if r.FinishReason == "content_filter" {
			o.Finish = FinishFilter
		}
	}
	r.Text = responsesText(v.output, o)
	_, some := firstElement(v.output)
	switch {
	case !some && o.Finish == FinishStop:
		o.Form = FormNoChoices
	case blank(r.Text):
		o.Form = FormEmpty
	}
}

// responsesText joins the texts of all messages in a list of output, and notes a refusal.
func responsesText(output []byte, o *Outcome) string {
	var texts []string
	for item := range elements(output) {
		kind, content := typed(item, "content")
		if kind != "message" {
			continue
		}
		for part := range elements(content) {
			switch kind, text := typed(part, "text"); kind {
			case "output_text":
				texts = append(texts, looseString(text))
			case "refusal":
				o.Finish = FinishRefusal
			}
		}
	}
	return strings.Join(texts, "")
}
