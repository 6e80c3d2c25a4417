package llm

import (
	"encoding/json"
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

type responsesReply struct {
	ID         string          `json:"id"`
	Model      string          `json:"model"`
	Status     string          `json:"status"`
	Error      json.RawMessage `json:"error"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Output *[]struct {
		Type    string `json:"type"`
		Content []struct {
			Type    string    `json:"type"`
			Text    looseText `json:"text"`
			Refusal looseText `json:"refusal"`
		} `json:"content"`
	} `json:"output"`
	Usage *struct {
		Input        count `json:"input_tokens"`
		Output       count `json:"output_tokens"`
		Total        count `json:"total_tokens"`
		InputDetails struct {
			Cached count `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		OutputDetails struct {
			Reasoning count `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	} `json:"usage"`
}

// ReadReply implements [Wire].
func (Responses) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v responsesReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model, r.FinishReason = v.ID, v.Model, v.Status
	if u := v.Usage; u != nil {
		if r.Usage = usageOf(u.Input, u.Output, u.Total); r.Usage != nil {
			r.Usage.CachedTokens = u.InputDetails.Cached.pointer()
			r.Usage.ReasoningTokens = u.OutputDetails.Reasoning.pointer()
		}
	}
	switch {
	case isObject(v.Error) || v.Output == nil:
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case v.Status == "failed" || v.Status == "cancelled":
		o.Fault = &Fault{Code: v.Status}
		return
	case v.Status == "queued" || v.Status == "in_progress": // the extra body asked for "background"
		o.Form = FormMalformed
		return
	case v.Status == "incomplete":
		r.FinishReason = v.Incomplete.Reason
		o.Finish = FinishLength
		if v.Incomplete.Reason == "content_filter" {
			o.Finish = FinishFilter
		}
	}
	var text strings.Builder
	for _, item := range *v.Output {
		if item.Type != "message" {
			continue
		}
		for _, part := range item.Content {
			switch part.Type {
			case "output_text":
				text.WriteString(string(part.Text))
			case "refusal":
				o.Finish = FinishRefusal
			}
		}
	}
	r.Text = text.String()
	switch {
	case len(*v.Output) == 0 && o.Finish == FinishStop:
		o.Form = FormNoChoices
	case blank(r.Text):
		o.Form = FormEmpty
	}
}
