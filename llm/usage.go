package llm

import (
	"cmp"
	"math"
	"strconv"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// tally holds the tokens and the cost as a server reports them, before they become a
// [Usage]. The prompt includes tokens read from and written to a cache, and the
// completion includes reasoning, unless settle finds otherwise.
type tally struct {
	prompt, completion, total  count
	cached, written, written1h count // parts of prompt
	reasoning                  count // part of completion
	cost                       amount
	omitsZeros                 bool // the format leaves out counts that are 0
}

// complete reports whether prompt and completion are known. Where one of them was not
// reported, it is what the total has beyond the other. It is 0 only in a format that
// leaves out zeros: in others it would make the cost too low.
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

// settle adds what some servers leave out of prompt or completion but count in their
// total, and bill: xAI its reasoning, Gemini's OpenAI endpoint its thoughts. A part that
// is larger than the whole cannot be included in it.
func (t *tally) settle() {
	if t.prompt.reported && t.cached.n > t.prompt.n && (t.total.n == 0 || t.prompt.n+t.completion.n+
		t.cached.n <= t.total.n) {
		t.prompt.n += t.cached.n // xAI, sometimes
	}
	switch missing := t.total.n - t.prompt.n - t.completion.n; {
	case t.prompt.reported && missing > 0:
		t.completion.n += missing
	case t.total.n == 0 && t.reasoning.n > t.completion.n:
		t.completion.n += t.reasoning.n
	}
}

// usage returns nil where neither the cost nor the tokens of prompt and completion are
// known. With a cost, tokens that are not known count as 0.
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
		Usage: Usage{
			PromptTokens: t.prompt.n, CompletionTokens: t.completion.n, TotalTokens: t.total.n,
		},
		cached: t.cached.n, written: t.written.n, written1h: t.written1h.n,
		reasoning: t.reasoning.n, cost: t.cost.usd,
	}
	if !t.total.reported {
		u.TotalTokens = t.prompt.n + t.completion.n
	}
	u.CachedTokens, u.CacheWriteTokens = known(&u.cached, t.cached.reported),
		known(&u.written, t.written.reported)
	u.CacheWrite1hTokens = known(&u.written1h, t.written1h.reported)
	u.ReasoningTokens = known(&u.reasoning, t.reasoning.reported)
	u.Cost = known(&u.cost, t.cost.reported)
	return &u.Usage
}

// known returns n where it was reported, and nil otherwise.
func known[T any](n *T, reported bool) *T {
	if !reported {
		return nil
	}
	return n
}

// pickLifetimes finds how many of the tokens written to a cache stay for five minutes,
// and for an hour.
func pickLifetimes(raw []byte, minutes, hour *[]byte) {
	pick(raw, at("ephemeral_5m_input_tokens", minutes), at("ephemeral_1h_input_tokens", hour))
}

// readLifetimes adds what [pickLifetimes] found. The sum may be reported only there.
func (t *tally) readLifetimes(minutes, hour []byte) {
	short := countOf(minutes)
	t.written1h = countOf(hour)
	if sum := short.n + t.written1h.n; sum > t.written.n {
		t.written = count{n: sum, reported: true}
	}
	t.written.bad = t.written.bad || short.bad || t.written1h.bad
}

// AppendJSON appends u as encoding/json writes it, and null for nil.
func (u *Usage) AppendJSON(dst []byte) []byte {
	if u == nil {
		return append(dst, "null"...)
	}
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), u.PromptTokens, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), u.CompletionTokens, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), u.TotalTokens, 10)
	for _, part := range [...]struct {
		name string
		n    *int64
	}{
		{`,"cached_tokens":`, u.CachedTokens},
		{`,"cache_write_tokens":`, u.CacheWriteTokens},
		{`,"cache_write_1h_tokens":`, u.CacheWrite1hTokens},
		{`,"reasoning_tokens":`, u.ReasoningTokens},
	} {
		if part.n != nil {
			dst = strconv.AppendInt(append(dst, part.name...), *part.n, 10)
		}
	}
	if u.Cost != nil && !math.IsNaN(*u.Cost) && !math.IsInf(*u.Cost, 0) {
		dst = jsonbytes.AppendFloat(append(dst, `,"cost":`...), *u.Cost)
	}
	return append(dst, '}')
}

// Plus returns the sum of two usages. It is a new one unless one of them is nil, which
// adds nothing. If the cost of one part is unknown, so is the cost of the sum; an
// optional count that only one part reports is the count of the sum.
func (u *Usage) Plus(other *Usage) *Usage {
	switch {
	case u == nil:
		return other
	case other == nil:
		return u
	}
	sum := &Usage{
		PromptTokens: u.PromptTokens + other.PromptTokens, CompletionTokens: u.CompletionTokens +
			other.CompletionTokens,
		TotalTokens:        u.TotalTokens + other.TotalTokens,
		CachedTokens:       plusKnown(u.CachedTokens, other.CachedTokens),
		CacheWriteTokens:   plusKnown(u.CacheWriteTokens, other.CacheWriteTokens),
		CacheWrite1hTokens: plusKnown(u.CacheWrite1hTokens, other.CacheWrite1hTokens),
		ReasoningTokens:    plusKnown(u.ReasoningTokens, other.ReasoningTokens),
	}
	if u.Cost != nil && other.Cost != nil {
		sum.Cost = new(*u.Cost + *other.Cost)
	}
	return sum
}

// plusKnown adds the known ones of two counts; it returns nil if neither is known.
func plusKnown(a, b *int64) *int64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return new(*a + *b)
}
