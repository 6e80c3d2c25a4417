package llm

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// ChatCompletions is OpenAI's /chat/completions, spoken by most servers: OpenAI,
// OpenRouter, Azure OpenAI, vLLM, Ollama, llama.cpp. Its zero value suits any of them but
// Azure.
type ChatCompletions struct {
	// MaxCompletionTokens sends the token limit as max_completion_tokens, as OpenAI's own
	// newer models demand, instead of max_tokens, which is all that some compatible
	// servers know.
	MaxCompletionTokens bool
	// Azure sends requests as Azure OpenAI wants them: the path with the deployment (or
	// /openai/v1 where AzureAPIVersion is empty), the key in api-key.
	Azure           bool
	AzureAPIVersion string
	// FileURLs allows https: URLs of documents, which OpenRouter takes and OpenAI does not.
	FileURLs bool
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
	dst = chatTurns.appendTurns(dst, r, r.Messages)
	dst = append(dst, ']')
	limit, strict := "max_tokens", schema.OpenAIStrict
	if w.MaxCompletionTokens {
		limit = "max_completion_tokens"
	}
	if w.Azure {
		strict = schema.AzureStrict
	}
	dst = r.Options.appendChat(appendSettings(dst, r, limit))
	if r.Schema != nil {
		dst = append(dst,
			`,"response_format":{"type":"json_schema","json_schema":{"name":"reply","strict":`...)
		dst = appendSchema(dst, r, strict)
	}
	return append(appendChatTools(dst, r), '}')
}

func (ChatCompletions) check(*Request) error { return nil }

func (w ChatCompletions) media() *mediaRules {
	if w.FileURLs {
		return &openRouterMedia
	}
	return &chatMedia
}

// appendSettings appends temperature and token limit if they are set, each after a comma.
func appendSettings(dst []byte, r *Request, limit string) []byte {
	return appendCount(appendNumber(dst, "temperature", r.Temperature), limit, r.MaxTokens)
}

// appendSchema appends whether the schema is within OpenAI's strict mode, and the schema,
// and closes both objects around it.
func appendSchema(dst []byte, r *Request, strict schema.Dialect) []byte {
	dst = strconv.AppendBool(dst, r.Schema.Within(strict))
	dst = append(append(dst, `,"schema":`...), r.Schema.Source()...)
	return append(dst, "}}"...)
}

// ticksPerUSD is xAI's unit of cost.
const ticksPerUSD = 1e10

// usageNames are the members of a usage that chat completions and responses call
// differently.
type usageNames struct{ prompt, completion, promptDetails, completionDetails string }

var (
	chatUsage = usageNames{
		"prompt_tokens", "completion_tokens", "prompt_tokens_details",
		"completion_tokens_details",
	}
	responsesUsage = usageNames{
		"input_tokens", "output_tokens", "input_tokens_details",
		"output_tokens_details",
	}
)

// openAIReply is what matters of a reply of chat completions or of responses, as far as
// it was reported.
type openAIReply struct {
	fault                      []byte
	choices                    []byte // chat completions
	output, status, incomplete []byte // responses
}

// openAIUsage is what is reported of a usage.
type openAIUsage struct {
	prompt, completion, total, cached, written, reasoning, minutes, hour []byte
	// These are members outside of the details, which take precedence.
	hits, thoughts, created       []byte
	cost, ticks, ownKey, upstream []byte
}

// read reads a usage, with the members that other servers add to it.
func (u *openAIUsage) read(usage []byte, names *usageNames) {
	for key, value := range jsonbytes.Members(usage) {
		switch string(key) {
		case names.prompt:
			u.prompt = value
		case names.completion:
			u.completion = value
		case "total_tokens":
			u.total = value
		case names.promptDetails:
			u.readInput(value)
		case names.completionDetails:
			pick(value, at("reasoning_tokens", &u.reasoning))
		case "prompt_cache_hit_tokens", "cached_tokens", // DeepSeek, Moonshot
			"num_cached_tokens", "cache_read_input_tokens": // Mistral, LiteLLM
			u.hits = value
		case "cache_creation_input_tokens": // LiteLLM
			u.created = value
		case "reasoning_tokens": // Perplexity, SGLang
			u.thoughts = value
		case "cost":
			u.cost = value
		case "cost_in_usd_ticks":
			u.ticks = value
		case "is_byok":
			u.ownKey = value
		case "cost_details":
			pick(value, at("upstream_inference_cost", &u.upstream))
		}
	}
}

// readInput reads the details of the prompt.
func (u *openAIUsage) readInput(details []byte) {
	for key, value := range jsonbytes.Members(details) {
		switch string(key) {
		case "cached_tokens":
			u.cached = value
		case "cache_write_tokens": // OpenAI, OpenRouter
			u.written = value
		case "cache_creation_tokens", "cache_creation_input_tokens": // LiteLLM, Alibaba
			u.created = value
		case "cache_creation_token_details": // LiteLLM
			pickLifetimes(value, &u.minutes, &u.hour)
		}
	}
}

// settled returns what the usage comes to.
func (u *openAIUsage) settled() *Usage {
	cost := u.cost
	if isObject(cost) { // Perplexity
		cost = jsonbytes.Find(cost, "total_cost")
	}
	t := tally{
		prompt: countOf(u.prompt), completion: countOf(u.completion), total: countOf(u.total),
		cached:    countOf(u.cached).or(countOf(u.hits)),
		written:   countOf(u.written).or(countOf(u.created)),
		reasoning: countOf(u.reasoning).or(countOf(u.thoughts)), cost: amountOf(cost),
	}
	t.readLifetimes(u.minutes, u.hour)
	switch n := countOf(u.ticks); {
	case !t.cost.reported && n.reported: // xAI
		t.cost = amount{usd: float64(n.n) / ticksPerUSD, reported: true}
	case isTrue(u.ownKey): // OpenRouter: the upstream provider bills the caller's own key
		// The cost is OpenRouter's fee alone. Other calls may report the upstream cost
		// too, which their cost includes.
		upstream := amountOf(u.upstream)
		t.cost = amount{
			usd: t.cost.usd + upstream.usd, reported: t.cost.reported && upstream.reported,
		}
	}
	return t.usage()
}

// readOpenAI reads the id, the model and the usage into r. One of these is read for each
// row, so its members are not looked for with [pick].
func readOpenAI(body []byte, r *Reply, names *usageNames) (v openAIReply) {
	var id, model []byte
	var usage openAIUsage
	for key, value := range jsonbytes.Members(body) {
		switch string(key) {
		case "id":
			id = value
		case "model":
			model = value
		case "usage":
			usage.read(value, names)
		case "error":
			v.fault = value
		case "choices":
			v.choices = value
		case "output":
			v.output = value
		case "status":
			v.status = value
		case "incomplete_details":
			v.incomplete = value
		}
	}
	r.ID, r.Model, r.Usage = textOf(id), textOf(model), usage.settled()
	return v
}

// chatChoice is what matters of a choice, as far as it was reported.
type chatChoice struct {
	finish, text string
	ended        bool   // finish_reason is there, if only as null
	native, own  string // the finish reason of the provider behind OpenRouter, and behind LiteLLM
	answered     bool
	refused      bool
	calls        bool   // it waits for what a tool returns
	callsKept    bool   // the caller wants the calls
	toolList     []byte // of calls
	function     []byte // the older form of a call
	fault        []byte // OpenRouter
}

func (c *chatChoice) read(raw []byte) {
	var message, content, refusal []byte
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "finish_reason":
			c.finish, c.ended = textOf(value), true
		case "message":
			message = value
		case "error":
			c.fault = value
		case "native_finish_reason":
			c.native = textOf(value)
		case "provider_specific_fields":
			c.own = textOf(jsonbytes.Find(value, "native_finish_reason"))
		}
	}
	c.answered = isReported(message)
	for key, value := range jsonbytes.Members(message) {
		switch string(key) {
		case "content":
			content = value
		case "refusal":
			refusal = value
		case "tool_calls":
			c.toolList = value
		case "function_call":
			c.function = value
		}
	}
	if c.text = textOf(content); c.text == "" {
		c.text = joinParts(content, "text", "output_text")
	}
	c.refused = looseString(refusal) != "" || hasRefusal(content)
	c.calls = isObject(c.function)
	for call := range jsonbytes.Elements(c.toolList) {
		c.calls = c.calls || !strings.HasPrefix(textOf(jsonbytes.Find(call, "id")), serverToolID)
	}
}

// serverToolID begins the ids of calls that Anthropic has answered itself. LiteLLM lists
// them among the others.
const serverToolID = "srvtoolu_"

// chatEnds are the finish reasons that OpenAI and compatible servers document, each
// spelling with who uses it. Those of callEnds are not among them: the stage answers no
// calls, so the answer is unfinished unless the calls are what the caller wants.
var chatEnds = map[string]finish{
	"stop":          finishStop,
	"eos":           finishStop, // Together
	"eos_token":     finishStop, // text-generation-inference
	"stop_sequence": finishStop, // text-generation-inference; Anthropic's, as gateways pass it on
	"end_turn":      finishStop, // Anthropic's, as gateways pass it on
	"STOP":          finishStop, // Gemini's, likewise
	"COMPLETE":      finishStop, // Cohere
	"STOP_SEQUENCE": finishStop, // Cohere
	"normal":        finishStop, // Baidu

	"length":                        finishLength,
	"model_length":                  finishLength, // Mistral: the end of the context window
	"model_context_window_exceeded": finishLength, // Z.ai, Anthropic
	"max_tokens":                    finishLength, // Anthropic
	"MAX_TOKENS":                    finishLength, // Gemini, Cohere

	"content_filter":       finishFilter,
	"sensitive":            finishFilter, // Z.ai
	"guardrail_intervened": finishFilter, // Bedrock

	"refusal": finishRefusal, // Anthropic
}

// callEnds are the finish reasons of an answer that calls tools.
var callEnds = map[string]bool{
	"tool_calls":    true,
	"function_call": true,
	"tool_use":      true, // Anthropic's, as gateways pass it on
	"TOOL_CALL":     true, // Cohere
}

// end returns how the answer ended, and the finish reason for it. Some servers say "stop"
// of an answer that calls a tool.
func (c *chatChoice) end() (finish, string) {
	end, reason := c.reported()
	if end == finishStop && c.calls && !c.callsKept {
		return finishUnfinished, "tool_calls"
	}
	return end, reason
}

// reported is end by the reported finish reasons alone.
func (c *chatChoice) reported() (end finish, reason string) {
	switch {
	case c.refused:
		return finishRefusal, c.finish
	case !c.ended:
		// Some servers never give it, such as LocalAI 1 and Bifrost 1.4; null differs
		// from that.
		return finishStop, ""
	}
	if strings.HasPrefix(c.finish, "content_filter: ") {
		// Gemini's compatible address adds its own reason.
		return finishFilter, c.finish
	}
	called := c.calls && c.callsKept && callEnds[c.finish]
	if end = endOf(chatEnds, c.finish); end != finishStop && !called {
		return end, c.finish
	}
	// Gateways turn reasons that they do not know into "stop".
	for _, native := range [...]string{c.native, c.own} {
		if native == "" {
			continue
		}
		for _, ends := range [...]map[string]finish{geminiEnds, messagesEnds} {
			// tool_use is no evidence: gateways use a tool to get JSON from Anthropic's
			// older models.
			if end = ends[native]; end != finishStop && native != "tool_use" {
				return end, native
			}
		}
	}
	return finishStop, c.finish
}

// cut reports whether by its finish reason the answer is incomplete.
func (c *chatChoice) cut() bool {
	end, _ := c.end()
	return end != finishStop && c.finish != ""
}

// readReply implements [Wire].
func (w ChatCompletions) readReply(body []byte, r *Reply, o *ending) {
	v := readOpenAI(body, r, &chatUsage)
	if isError(v.fault) || !isReported(v.choices) {
		o.malformed(body)
		return
	}
	first, ok := firstElement(v.choices)
	if !ok {
		o.Form = formNoChoices
		return
	}
	choice := chatChoice{callsKept: o.Known.Keep.Has(KeepToolCalls)}
	choice.read(first)
	switch {
	case isError(choice.fault):
		o.Fault = faultOf(choice.fault)
	case choice.finish == "error", choice.finish == "ERROR", // OpenRouter, vLLM; Cohere
		choice.finish == "abort",                        // vLLM, SGLang
		choice.finish == "network_error",                // Z.ai
		choice.finish == "insufficient_system_resource": // DeepSeek
		o.Fault = &fault{Code: choice.finish}
	case !choice.answered && !choice.cut():
		// Gemini's compatible address leaves the message out of what it has filtered; no
		// other server has a reason to.
		o.Form = formMalformed
		return
	}
	r.Text = choice.text
	o.Finish, r.FinishReason = choice.end()
	if choice.callsKept {
		r.keepCalls(choice.toolCalls())
	}
	if blank(r.Text) && len(r.calls()) == 0 {
		o.Form = formEmpty
	}
}
