package llm

import (
	"encoding/json"
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

type chatReply struct {
	ID      string          `json:"id"`
	Model   string          `json:"model"`
	Choices *[]chatChoice   `json:"choices"`
	Usage   *chatUsage      `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type chatChoice struct {
	FinishReason string          `json:"finish_reason"`
	Message      *chatMessage    `json:"message"`
	Error        json.RawMessage `json:"error"` // OpenRouter
}

type chatMessage struct {
	Content textParts `json:"content"`
	Refusal looseText `json:"refusal"`
}

type chatUsage struct {
	Prompt        count    `json:"prompt_tokens"`
	Completion    count    `json:"completion_tokens"`
	Total         count    `json:"total_tokens"`
	Cost          *float64 `json:"cost"` // OpenRouter, in USD
	PromptDetails struct {
		Cached count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u *chatUsage) usage() *Usage {
	if u == nil {
		return nil
	}
	usage := usageOf(u.Prompt, u.Completion, u.Total)
	if usage == nil {
		return nil
	}
	usage.CachedTokens = u.PromptDetails.Cached.pointer()
	usage.ReasoningTokens = u.CompletionDetails.Reasoning.pointer()
	if u.Cost != nil && *u.Cost >= 0 {
		usage.Cost = u.Cost
	}
	return usage
}

// ReadReply implements [Wire].
func (w ChatCompletions) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v chatReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model, r.Usage = v.ID, v.Model, v.Usage.usage()
	switch {
	case isObject(v.Error) || v.Choices == nil:
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case len(*v.Choices) == 0:
		o.Form = FormNoChoices
		return
	}
	choice := &(*v.Choices)[0]
	r.FinishReason = choice.FinishReason
	switch {
	case isObject(choice.Error):
		o.Fault = faultOf(choice.Error)
	case choice.FinishReason == "error", // OpenRouter, vLLM
		choice.FinishReason == "abort",                        // vLLM, SGLang
		choice.FinishReason == "insufficient_system_resource": // DeepSeek
		o.Fault = &Fault{Code: choice.FinishReason}
	case choice.Message == nil:
		o.Form = FormMalformed
		return
	}
	if choice.Message != nil {
		r.Text = string(choice.Message.Content)
		if choice.Message.Refusal != "" {
			o.Finish = FinishRefusal
		}
	}
	switch choice.FinishReason {
	case "length", "model_length": // Mistral: the end of the context window
		o.Finish = FinishLength
	case "content_filter":
		o.Finish = FinishFilter
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}
