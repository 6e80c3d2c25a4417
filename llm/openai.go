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
		dst = append(dst, `,"response_format":{"type":"json_schema","json_schema":{"name":"reply","strict":`...)
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
	chatUsage      = usageNames{"prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"}
	responsesUsage = usageNames{"input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details"}
)

// openAIReply is what matters of a reply of chat completions or of responses, as far as
// it was reported.
type openAIReply struct {
	fault                      []byte
	choices                    []byte // chat completions
	output, status, incomplete []byte // responses
}

// readOpenAI reads the id, the model and the usage into r, with the members that other
// servers add to the usage.
func readOpenAI(body []byte, r *Reply, names *usageNames) (v openAIReply) {
	var id, model, prompt, completion, total, cached, written, reasoning, minutes, hour []byte
	var hits, thoughts, created []byte // outside of the details, which take precedence
	var cost, ticks, ownKey, upstream []byte
	readInput := func(details []byte) {
		pick(details, at("cached_tokens", &cached),
			at("cache_write_tokens", &written),                                                 // OpenAI, OpenRouter
			at("cache_creation_tokens", &created), at("cache_creation_input_tokens", &created), // LiteLLM, Alibaba
			each("cache_creation_token_details", func(value []byte) { pickLifetimes(value, &minutes, &hour) })) // LiteLLM
	}
	readUsage := func(usage []byte) {
		pick(usage, at(names.prompt, &prompt), at(names.completion, &completion), at("total_tokens", &total),
			each(names.promptDetails, readInput),
			each(names.completionDetails, func(details []byte) { pick(details, at("reasoning_tokens", &reasoning)) }),
			at("prompt_cache_hit_tokens", &hits), at("cached_tokens", &hits), // DeepSeek, Moonshot
			at("num_cached_tokens", &hits), at("cache_read_input_tokens", &hits), // Mistral, LiteLLM
			at("cache_creation_input_tokens", &created), // LiteLLM
			at("reasoning_tokens", &thoughts),           // Perplexity, SGLang
			at("cost", &cost), at("cost_in_usd_ticks", &ticks), at("is_byok", &ownKey),
			each("cost_details", func(details []byte) { pick(details, at("upstream_inference_cost", &upstream)) }))
	}
	pick(body, at("id", &id), at("model", &model), each("usage", readUsage), at("error", &v.fault), at("choices", &v.choices),
		at("output", &v.output), at("status", &v.status), at("incomplete_details", &v.incomplete))
	if isObject(cost) { // Perplexity
		cost = jsonbytes.Find(cost, "total_cost")
	}
	t := tally{
		prompt: countOf(prompt), completion: countOf(completion), total: countOf(total),
		cached: countOf(cached).or(countOf(hits)), written: countOf(written).or(countOf(created)),
		reasoning: countOf(reasoning).or(countOf(thoughts)), cost: amountOf(cost),
	}
	t.readLifetimes(minutes, hour)
	switch n := countOf(ticks); {
	case !t.cost.reported && n.reported: // xAI
		t.cost = amount{usd: float64(n.n) / ticksPerUSD, reported: true}
	case isTrue(ownKey): // OpenRouter: the upstream provider bills the caller's own key
		// The cost is OpenRouter's fee alone. Other calls may report the upstream cost
		// too, which their cost includes.
		upstream := amountOf(upstream)
		t.cost = amount{usd: t.cost.usd + upstream.usd, reported: t.cost.reported && upstream.reported}
	}
	r.ID, r.Model, r.Usage = textOf(id), textOf(model), t.usage()
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
	var finish, native, specific, message []byte
	pick(raw, at("finish_reason", &finish), at("message", &message), at("error", &c.fault),
		at("native_finish_reason", &native), at("provider_specific_fields", &specific))
	c.finish, c.ended = textOf(finish), finish != nil
	c.native, c.own = textOf(native), textOf(jsonbytes.Find(specific, "native_finish_reason"))
	c.answered = isReported(message)

	var content, refusal []byte
	pick(message, at("content", &content), at("refusal", &refusal), at("tool_calls", &c.toolList), at("function_call", &c.function))
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
		return finishStop, "" // some servers never give it, such as LocalAI 1 and Bifrost 1.4; null differs from that
	}
	if strings.HasPrefix(c.finish, "content_filter: ") { // Gemini's compatible address adds its own reason
		return finishFilter, c.finish
	}
	called := c.calls && c.callsKept && callEnds[c.finish]
	if end = endOf(chatEnds, c.finish); end != finishStop && !called {
		return end, c.finish
	}
	// Gateways turn reasons that they do not know into "stop".
	for _, native := range [...]string{c.native, c.own} {
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
