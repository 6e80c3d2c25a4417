package llm

import (
	"net/http"
	"net/url"
)

// ChatCompletions is OpenAI's /chat/completions, spoken by most servers:
// OpenAI, OpenRouter, Azure OpenAI, vLLM, Ollama, llama.cpp. Its zero value suits
// any of them but Azure.
type ChatCompletions struct {
	// MaxCompletionTokens sends the token limit as max_completion_tokens, as
	// OpenAI's own newer models demand, instead of max_tokens, which is all that
	// some compatible servers know.
	MaxCompletionTokens bool
	// Azure asks as Azure OpenAI wants to be asked: the path with the
	// deployment (or /openai/v1 where AzureAPIVersion is empty), the key in
	// api-key.
	Azure           bool
	AzureAPIVersion string
}

var _ Wire = ChatCompletions{}

// Path implements [Wire].
func (w ChatCompletions) Path(model string) string {
	switch {
	case w.Azure && w.AzureAPIVersion != "":
		return "/openai/deployments/" + url.PathEscape(model) +
			"/chat/completions?api-version=" + url.QueryEscape(w.AzureAPIVersion)
	case w.Azure:
		return "/openai/v1/chat/completions"
	}
	return "/chat/completions"
}

// SetHeader implements [Wire].
func (w ChatCompletions) SetHeader(h http.Header, key string) {
	switch {
	case key == "":
	case w.Azure:
		h.Set("Api-Key", key)
	default:
		h.Set("Authorization", "Bearer "+key)
	}
}

// AppendRequest implements [Wire].
func (w ChatCompletions) AppendRequest(dst []byte, r *Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = appendString(dst, r.Model)
	dst = append(dst, `,"messages":[`...)
	if r.System != "" {
		dst = appendMessage(dst, "system", r.System)
		dst = append(dst, ',')
	}
	dst = appendTurns(dst, r)
	dst = append(dst, ']')
	if r.Temperature != nil {
		dst = append(dst, `,"temperature":`...)
		dst = appendFloat(dst, *r.Temperature)
	}
	if r.MaxTokens != nil {
		name := `,"max_tokens":`
		if w.MaxCompletionTokens {
			name = `,"max_completion_tokens":`
		}
		dst = append(dst, name...)
		dst = appendInt(dst, *r.MaxTokens)
	}
	if r.Schema != nil {
		dst = append(dst, `,"response_format":{"type":"json_schema","json_schema":{"name":"reply","strict":`...)
		dst = appendBool(dst, r.Schema.strict)
		dst = append(dst, `,"schema":`...)
		dst = append(dst, r.Schema.source...)
		dst = append(dst, "}}"...)
	}
	return append(dst, '}')
}

// appendTurns appends the messages after the system prompt as role and content.
func appendTurns(dst []byte, r *Request) []byte {
	if r.Context != "" {
		dst = appendMessage(dst, "user", r.Context)
		dst = append(dst, ',')
	}
	dst = appendMessage(dst, "user", r.Prompt)
	if r.Complaint != "" {
		if r.Rejected != "" {
			dst = append(dst, ',')
			dst = appendMessage(dst, "assistant", r.Rejected)
		}
		dst = append(dst, ',')
		dst = appendMessage(dst, "user", r.Complaint)
	}
	return dst
}

func appendMessage(dst []byte, role, content string) []byte {
	dst = append(dst, `{"role":"`...)
	dst = append(dst, role...)
	dst = append(dst, `","content":`...)
	dst = appendString(dst, content)
	return append(dst, '}')
}

// chatReply is what matters of a reply, as far as it was told.
type chatReply struct {
	choices, fault []byte
	usage          chatUsage
}

type chatChoice struct {
	finish, text string
	answered     bool
	refused      bool
	fault        []byte // OpenRouter
}

type chatUsage struct {
	prompt, completion, total, cached, reasoning count
	cost                                         *float64 // OpenRouter, in USD
}

func (v *chatReply) read(body []byte, r *Reply) {
	for key, value := range members(body) {
		switch string(key) {
		case "id":
			readString(&r.ID, value)
		case "model":
			readString(&r.Model, value)
		case "choices":
			v.choices = value
		case "usage":
			v.usage.read(value)
		case "error":
			v.fault = value
		}
	}
}

func (c *chatChoice) read(raw []byte) {
	for key, value := range members(raw) {
		switch string(key) {
		case "finish_reason":
			readString(&c.finish, value)
		case "error":
			c.fault = value
		case "message":
			c.answered = isTold(value)
			c.readMessage(value)
		}
	}
}

func (c *chatChoice) readMessage(raw []byte) {
	for key, value := range members(raw) {
		switch string(key) {
		case "content":
			if value[0] == '[' {
				c.text = joinParts(value, "text", "output_text")
			}
			readString(&c.text, value)
		case "refusal":
			c.refused = looseString(value) != ""
		}
	}
}

func (u *chatUsage) read(raw []byte) {
	for key, value := range members(raw) {
		switch string(key) {
		case "prompt_tokens":
			u.prompt = countOf(value)
		case "completion_tokens":
			u.completion = countOf(value)
		case "total_tokens":
			u.total = countOf(value)
		case "cost":
			u.cost = costOf(value)
		case "prompt_tokens_details":
			u.cached = countOf(memberOf(value, "cached_tokens"))
		case "completion_tokens_details":
			u.reasoning = countOf(memberOf(value, "reasoning_tokens"))
		}
	}
}

func (u *chatUsage) usage() *Usage {
	usage := usageOf(u.prompt, u.completion, u.total)
	if usage == nil {
		return nil
	}
	usage.CachedTokens, usage.ReasoningTokens, usage.Cost = u.cached.pointer(), u.reasoning.pointer(), u.cost
	return usage
}

// ReadReply implements [Wire].
func (w ChatCompletions) ReadReply(body []byte, r *Reply, o *Outcome) {
	if !validJSON(body) {
		o.Form = FormNotJSON
		return
	}
	var v chatReply
	v.read(body, r)
	r.Usage = v.usage.usage()
	if isObject(v.fault) || !isTold(v.choices) {
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	}
	first, ok := firstElement(v.choices)
	if !ok {
		o.Form = FormNoChoices
		return
	}
	var choice chatChoice
	choice.read(first)
	r.FinishReason = choice.finish
	switch {
	case isObject(choice.fault):
		o.Fault = faultOf(choice.fault)
	case choice.finish == "error", // OpenRouter, vLLM
		choice.finish == "abort",                        // vLLM, SGLang
		choice.finish == "insufficient_system_resource": // DeepSeek
		o.Fault = &Fault{Code: choice.finish}
	case !choice.answered:
		o.Form = FormMalformed
		return
	}
	if choice.refused {
		o.Finish = FinishRefusal
	}
	r.Text = choice.text
	switch choice.finish {
	case "length", "model_length": // Mistral: the end of the context window
		o.Finish = FinishLength
	case "content_filter":
		o.Finish = FinishFilter
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}
