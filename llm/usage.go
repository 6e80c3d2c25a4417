package llm

import (
	"math"
	"strconv"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// tally is what a server reports of tokens and money, before it becomes a [Usage]. The prompt includes what was read
// from and written to a cache, the completion includes reasoning, unless settle finds otherwise.
type tally struct {
	prompt, completion, total  count
	cached, written, written1h count // parts of prompt
	reasoning                  count // part of completion
	cost                       amount
	omitsZeros                 bool // the format leaves out counts that are 0
}

// complete reports whether prompt and completion are known. Where one of them was not reported, it is what the total
// has beyond the other. It is 0 only in a format that leaves out zeros: in others it would make the cost too low.
func (t *tally) complete() bool {
	if t.prompt.bad || t.completion.bad {
		return false
	}
	if t.prompt.reported == t.completion.reported {
		return t.prompt.reported
	}
	missing := &t.prompt
	if t.prompt.reported {
		missing = &t.completion
	}
	switch rest := t.total.n - t.prompt.n - t.completion.n; {
	case t.total.reported && rest >= 0:
		*missing = count{n: missing.n + rest, reported: true}
	case t.omitsZeros:
		missing.reported = true
	}
	return missing.reported
}

// settle adds what some servers leave out of prompt or completion but count in their total, and bill: xAI its
// reasoning, Gemini's OpenAI endpoint its thoughts. A part that is larger than the whole cannot be included in it.
func (t *tally) settle() {
	if t.prompt.reported && t.cached.n > t.prompt.n && (t.total.n == 0 || t.prompt.n+t.completion.n+t.cached.n <= t.total.n) {
		t.prompt.n += t.cached.n // xAI, at times
	}
	switch missing := t.total.n - t.prompt.n - t.completion.n; {
	case t.prompt.reported && missing > 0:
		t.completion.n += missing
	case t.total.n == 0 && t.reasoning.n > t.completion.n:
		t.completion.n += t.reasoning.n
	}
}

// usage returns nil where neither the cost nor the tokens of prompt and completion are known. With a cost, tokens that
// are not known count as 0.
func (t *tally) usage() *Usage {
	switch {
	case t.complete():
		t.settle()
	case !t.cost.reported:
		return nil
	}
	u := &struct { // one allocation for the usage and all that it points to
		Usage
		cached, written, written1h, reasoning int64
		cost                                  float64
	}{
		Usage:  Usage{PromptTokens: t.prompt.n, CompletionTokens: t.completion.n, TotalTokens: t.total.n},
		cached: t.cached.n, written: t.written.n, written1h: t.written1h.n, reasoning: t.reasoning.n, cost: t.cost.usd,
	}
	if !t.total.reported {
		u.TotalTokens = t.prompt.n + t.completion.n
	}
	if t.cached.reported {
		u.CachedTokens = &u.cached
	}
	if t.written.reported {
		u.CacheWriteTokens = &u.written
	}
	if t.written1h.reported {
		u.CacheWrite1hTokens = &u.written1h
	}
	if t.reasoning.reported {
		u.ReasoningTokens = &u.reasoning
	}
	if t.cost.reported {
		u.Cost = &u.cost
	}
	return &u.Usage
}

// readLifetimes reads how many of the tokens written to a cache stay for which time. The sum may be reported only here.
func (t *tally) readLifetimes(raw []byte) {
	var short count
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "ephemeral_5m_input_tokens":
			short = countOf(value)
		case "ephemeral_1h_input_tokens":
			t.written1h = countOf(value)
		}
	}
	if sum := short.n + t.written1h.n; sum > t.written.n {
		t.written = count{n: sum, reported: true}
	}
	t.written.bad = t.written.bad || short.bad || t.written1h.bad
}

// openAIUsage is the usage of chat completions and of responses, with the members that other servers add to them.
type openAIUsage struct {
	tally
	hits, thoughts, created count // outside of the details, which take precedence
	lifetimes               []byte
	ticks                   count // xAI's cost
	ownKey                  bool  // OpenRouter: the upstream provider bills the caller's own key
	upstream                amount
}

// ticksPerUSD is xAI's unit of cost.
const ticksPerUSD = 1e10

// usageNames are the members of a usage that chat completions and responses call differently.
type usageNames struct{ prompt, completion, promptDetails, completionDetails string }

var (
	chatUsage      = usageNames{"prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"}
	responsesUsage = usageNames{"input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details"}
)

func (u *openAIUsage) read(raw []byte, names *usageNames) {
	for key, value := range jsonbytes.Members(raw) {
		switch {
		case string(key) == names.prompt:
			u.prompt = countOf(value)
		case string(key) == names.completion:
			u.completion = countOf(value)
		case string(key) == names.promptDetails:
			u.readPrompt(value)
		case string(key) == names.completionDetails:
			u.reasoning = countOf(jsonbytes.Find(value, "reasoning_tokens"))
		default:
			u.readCommon(key, value)
		}
	}
}

func (u *openAIUsage) readPrompt(raw []byte) {
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "cached_tokens":
			u.cached = countOf(value)
		case "cache_write_tokens": // OpenAI, OpenRouter
			u.written = countOf(value)
		case "cache_creation_tokens", "cache_creation_input_tokens": // LiteLLM, Alibaba
			u.created = countOf(value)
		case "cache_creation_token_details": // LiteLLM
			u.lifetimes = value
		}
	}
}

func (u *openAIUsage) readCommon(key, value []byte) {
	switch string(key) {
	case "total_tokens":
		u.total = countOf(value)
	case "prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens": // DeepSeek, Moonshot, Mistral, LiteLLM
		u.hits = countOf(value)
	case "cache_creation_input_tokens": // LiteLLM
		u.created = countOf(value)
	case "reasoning_tokens": // Perplexity, SGLang
		u.thoughts = countOf(value)
	case "cost":
		u.cost = amountOf(value)
		if isObject(value) { // Perplexity
			u.cost = amountOf(jsonbytes.Find(value, "total_cost"))
		}
	case "cost_in_usd_ticks":
		u.ticks = countOf(value)
	case "is_byok":
		u.ownKey = value[0] == 't'
	case "cost_details":
		u.upstream = amountOf(jsonbytes.Find(value, "upstream_inference_cost"))
	}
}

func (u *openAIUsage) usage() *Usage {
	u.cached, u.reasoning, u.written = u.cached.or(u.hits), u.reasoning.or(u.thoughts), u.written.or(u.created)
	u.readLifetimes(u.lifetimes)
	switch {
	case !u.cost.reported && u.ticks.reported:
		u.cost = amount{usd: float64(u.ticks.n) / ticksPerUSD, reported: true}
	case u.ownKey:
		// The cost is OpenRouter's fee alone. Other calls may report the upstream cost too, which their cost includes.
		u.cost = amount{usd: u.cost.usd + u.upstream.usd, reported: u.cost.reported && u.upstream.reported}
	}
	return u.tally.usage()
}

// AppendJSON appends u as encoding/json writes it, and null for nil.
func (u *Usage) AppendJSON(dst []byte) []byte {
	if u == nil {
		return append(dst, "null"...)
	}
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), u.PromptTokens, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), u.CompletionTokens, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), u.TotalTokens, 10)
	if u.CachedTokens != nil {
		dst = strconv.AppendInt(append(dst, `,"cached_tokens":`...), *u.CachedTokens, 10)
	}
	if u.CacheWriteTokens != nil {
		dst = strconv.AppendInt(append(dst, `,"cache_write_tokens":`...), *u.CacheWriteTokens, 10)
	}
	if u.CacheWrite1hTokens != nil {
		dst = strconv.AppendInt(append(dst, `,"cache_write_1h_tokens":`...), *u.CacheWrite1hTokens, 10)
	}
	if u.ReasoningTokens != nil {
		dst = strconv.AppendInt(append(dst, `,"reasoning_tokens":`...), *u.ReasoningTokens, 10)
	}
	if u.Cost != nil && !math.IsNaN(*u.Cost) && !math.IsInf(*u.Cost, 0) {
		dst = jsonbytes.AppendFloat(append(dst, `,"cost":`...), *u.Cost)
	}
	return append(dst, '}')
}
