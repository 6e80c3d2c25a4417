package llm

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// ChatCompletions is OpenAI's /chat/completions, spoken by most servers:
// OpenAI, OpenRouter, Azure OpenAI, vLLM, Ollama, llama.cpp. Its zero value suits
// any of them but Azure.
type ChatCompletions struct {
	// MaxCompletionTokens sends the token limit as max_completion_tokens, as
	// OpenAI's own newer models demand, instead of max_tokens, which is all that
	// some compatible servers know.
	MaxCompletionTokens bool
	// Azure sends requests as Azure OpenAI wants them: the path with the
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
	dst = jsonbytes.AppendString(dst, r.Model)
	dst = append(dst, `,"messages":[`...)
	if r.System != "" {
		dst = appendMessage(dst, "system", r.System)
		dst = append(dst, ',')
	}
	dst = appendTurns(dst, r, "assistant", appendMessage)
	dst = append(dst, ']')
	if r.Temperature != nil {
		dst = append(dst, `,"temperature":`...)
		dst = jsonbytes.AppendFloat(dst, *r.Temperature)
	}
	if r.MaxTokens != nil {
		name := `,"max_tokens":`
		if w.MaxCompletionTokens {
			name = `,"max_completion_tokens":`
		}
		dst = append(dst, name...)
		dst = strconv.AppendInt(dst, int64(*r.MaxTokens), 10)
	}
	if r.Schema != nil {
		dst = append(dst, `,"response_format":{"type":"json_schema","json_schema":{"name":"reply","strict":`...)
		strict := schema.OpenAIStrict
		if w.Azure {
			strict = schema.AzureStrict
		}
		dst = strconv.AppendBool(dst, r.Schema.Within(strict))
		dst = append(dst, `,"schema":`...)
		dst = append(dst, r.Schema.Source()...)
		dst = append(dst, "}}"...)
	}
	return append(dst, '}')
}

// appendTurns appends the messages after the system prompt, each as appendTurn writes it. model is the wire format's
// name for the model's role.
func appendTurns(dst []byte, r *Request, model string, appendTurn func(dst []byte, role, text string) []byte) []byte {
	if r.Context != "" {
		dst = appendTurn(dst, "user", r.Context)
		dst = append(dst, ',')
	}
	dst = appendTurn(dst, "user", r.Prompt)
	if r.Complaint != "" {
		if r.Rejected != "" {
			dst = append(dst, ',')
			dst = appendTurn(dst, model, r.Rejected)
		}
		dst = append(dst, ',')
		dst = appendTurn(dst, "user", r.Complaint)
	}
	return dst
}

// appendMessage appends one message as role and content.
func appendMessage(dst []byte, role, content string) []byte {
	dst = append(dst, `{"role":"`...)
	dst = append(dst, role...)
	dst = append(dst, `","content":`...)
	dst = jsonbytes.AppendString(dst, content)
	return append(dst, '}')
}

// chatReply is what matters of a reply, as far as it was reported.
type chatReply struct {
	choices, fault []byte
	usage          openAIUsage
}

type chatChoice struct {
	finish, text string
	ended        bool   // finish_reason is there, if only as null
	native, own  string // the finish reason of the provider behind OpenRouter, and behind LiteLLM
	answered     bool
	refused      bool
	calls        bool   // it waits for what a tool returns
	fault        []byte // OpenRouter
}

func (v *chatReply) read(body []byte, r *Reply) {
	for key, value := range jsonbytes.Members(body) {
		switch string(key) {
		case "id":
			readString(&r.ID, value)
		case "model":
			readString(&r.Model, value)
		case "choices":
			v.choices = value
		case "usage":
			v.usage.read(value, &chatUsage)
		case "error":
			v.fault = value
		}
	}
}

func (c *chatChoice) read(raw []byte) {
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "finish_reason":
			c.ended = true
			readString(&c.finish, value)
		case "native_finish_reason": // OpenRouter
			readString(&c.native, value)
		case "provider_specific_fields": // LiteLLM
			readString(&c.own, jsonbytes.Find(value, "native_finish_reason"))
		case "error":
			c.fault = value
		case "message":
			c.answered = isReported(value)
			c.readMessage(value)
		}
	}
}

func (c *chatChoice) readMessage(raw []byte) {
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "content":
			if value[0] == '[' {
				c.text = joinParts(value, "text", "output_text")
				c.refused = c.refused || hasRefusal(value)
			}
			readString(&c.text, value)
		case "refusal":
			c.refused = c.refused || looseString(value) != ""
		case "tool_calls":
			for call := range jsonbytes.Elements(value) {
				var id string
				readString(&id, jsonbytes.Find(call, "id"))
				c.calls = c.calls || !strings.HasPrefix(id, serverToolID)
			}
		case "function_call":
			c.calls = c.calls || isObject(value)
		}
	}
}

// serverToolID begins the ids of calls that Anthropic has answered itself. LiteLLM lists them among the others.
const serverToolID = "srvtoolu_"

// chatEnds are the finish reasons that OpenAI and compatible servers document,
// each spelling with who uses it. tool_calls and function_call are not among
// them: the stage answers no calls, so the answer is unfinished.
var chatEnds = map[string]Finish{
	"stop":          FinishStop,
	"eos":           FinishStop, // Together
	"eos_token":     FinishStop, // text-generation-inference
	"stop_sequence": FinishStop, // text-generation-inference; Anthropic's, as gateways pass it on
	"end_turn":      FinishStop, // Anthropic's, as gateways pass it on
	"STOP":          FinishStop, // Gemini's, likewise
	"COMPLETE":      FinishStop, // Cohere
	"STOP_SEQUENCE": FinishStop, // Cohere
	"normal":        FinishStop, // Baidu

	"length":                        FinishLength,
	"model_length":                  FinishLength, // Mistral: the end of the context window
	"model_context_window_exceeded": FinishLength, // Z.ai, Anthropic
	"max_tokens":                    FinishLength, // Anthropic
	"MAX_TOKENS":                    FinishLength, // Gemini, Cohere

	"content_filter":       FinishFilter,
	"sensitive":            FinishFilter, // Z.ai
	"guardrail_intervened": FinishFilter, // Bedrock

	"refusal": FinishRefusal, // Anthropic
}

// end returns how the answer ended, and the finish reason for it. Some servers say "stop" of an answer that calls a
// tool.
func (c *chatChoice) end() (Finish, string) {
	end, reason := c.reported()
	if end == FinishStop && c.calls {
		return FinishUnfinished, "tool_calls"
	}
	return end, reason
}

// reported is end by the reported finish reasons alone.
func (c *chatChoice) reported() (end Finish, reason string) {
	switch {
	case c.refused:
		return FinishRefusal, c.finish
	case !c.ended:
		return FinishStop, "" // some servers never give it, such as LocalAI 1 and Bifrost 1.4; null is another thing
	}
	if strings.HasPrefix(c.finish, "content_filter: ") { // Gemini's compatible address adds its own reason
		return FinishFilter, c.finish
	}
	if end = endOf(chatEnds, c.finish); end != FinishStop {
		return end, c.finish
	}
	// Gateways turn reasons that they do not know into "stop".
	for _, native := range [...]string{c.native, c.own} {
		for _, ends := range [...]map[string]Finish{geminiEnds, messagesEnds} {
			// tool_use is no evidence: gateways use a tool to get JSON from Anthropic's older models.
			if end = ends[native]; end != FinishStop && native != "tool_use" {
				return end, native
			}
		}
	}
	return FinishStop, c.finish
}

// cut reports whether by its finish reason the answer is incomplete.
func (c *chatChoice) cut() bool {
	end, _ := c.end()
	return end != FinishStop && c.finish != ""
}

// ReadReply implements [Wire].
func (w ChatCompletions) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v chatReply
	v.read(body, r)
	r.Usage = v.usage.usage()
	if isError(v.fault) || !isReported(v.choices) {
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
	switch {
	case isError(choice.fault):
		o.Fault = faultOf(choice.fault)
	case choice.finish == "error", choice.finish == "ERROR", // OpenRouter, vLLM; Cohere
		choice.finish == "abort",                        // vLLM, SGLang
		choice.finish == "network_error",                // Z.ai
		choice.finish == "insufficient_system_resource": // DeepSeek
		o.Fault = &Fault{Code: choice.finish}
	case !choice.answered && !choice.cut():
		// Gemini's compatible address leaves the message out of what it has filtered; no other server has a reason to.
		o.Form = FormMalformed
		return
	}
	r.Text = choice.text
	o.Finish, r.FinishReason = choice.end()
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}
