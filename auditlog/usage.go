package auditlog

import (
	"cmp"
	"strconv"
)

// Unpriced reports whether the call may have been billed at an unknown cost. A call that
// was refused, or that failed with another status than 2xx and reported no usage, costs
// nothing.
func (c *Call) Unpriced() bool {
	if c.Usage != nil {
		return c.Usage.CostUSD == nil
	}
	switch c.Status {
	case CallSuccess, CallUnknown:
		return true
	case CallCapacityRetry:
		return false
	case CallFailure:
	}
	return c.StatusCode/100 == 2
}

// UsageSum is the usage of several calls. The zero value is the usage of none.
type UsageSum struct {
	Reported *Usage // nil while no call reported any
	Unpriced bool   // a call's cost is missing from Reported; see [Call.Unpriced]
}

// Add adds what a call reported. Usage is shared with the call, which must not change it.
func (s *UsageSum) Add(u *Usage, unpriced bool) {
	s.Reported = s.Reported.Plus(u)
	s.Unpriced = s.Unpriced || unpriced
}

// Total returns the sum, without a cost if the cost of a call is unknown. The caller must
// not change it.
func (s *UsageSum) Total() *Usage {
	if !s.Unpriced || s.Reported == nil || s.Reported.CostUSD == nil {
		return s.Reported
	}
	u := clone(s.Reported)
	u.CostUSD = nil
	return u
}

// Plus returns the sum of two usages. A nil one adds nothing: the sum is then the other
// one itself, not a copy. The cost of the sum is unknown if the cost of a part is.
// Cached, cache-write and reasoning tokens are those that were reported.
func (u *Usage) Plus(other *Usage) *Usage {
	if u == nil {
		return other
	}
	if other == nil {
		return u
	}
	sum := u.Clone()
	sum.Add(other)
	return sum
}

// Add adds other to u, which it changes; see [Usage.Plus]. Neither may be nil.
func (u *Usage) Add(other *Usage) {
	u.PromptTokens += other.PromptTokens
	u.CompletionTokens += other.CompletionTokens
	u.TotalTokens += other.TotalTokens
	u.CachedTokens, u.ReasoningTokens = addKnown(u.CachedTokens, other.CachedTokens), addKnown(u.ReasoningTokens, other.ReasoningTokens)
	u.CacheWriteTokens = addKnown(u.CacheWriteTokens, other.CacheWriteTokens)
	u.CacheWrite1hTokens = addKnown(u.CacheWrite1hTokens, other.CacheWrite1hTokens)
	if u.CostUSD == nil || other.CostUSD == nil {
		u.CostUSD = nil
		return
	}
	*u.CostUSD += *other.CostUSD
}

// addKnown returns the sum of two numbers, of which a nil one is unknown and adds nothing.
// It may change a.
func addKnown(a, b *int64) *int64 {
	if a == nil || b == nil {
		return cmp.Or(a, clone(b))
	}
	*a += *b
	return a
}

// Clone returns a copy that shares nothing with u. It returns nil for nil.
func (u *Usage) Clone() *Usage {
	u = clone(u)
	if u != nil {
		u.CachedTokens, u.ReasoningTokens, u.CostUSD = clone(u.CachedTokens), clone(u.ReasoningTokens), clone(u.CostUSD)
		u.CacheWriteTokens, u.CacheWrite1hTokens = clone(u.CacheWriteTokens), clone(u.CacheWrite1hTokens)
	}
	return u
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// Tokens formats the tokens in and out in a few characters. It is a dash where nothing was
// reported.
func (u *Usage) Tokens() string {
	if u == nil {
		return "-"
	}
	return strconv.FormatInt(u.PromptTokens, 10) + "+" + strconv.FormatInt(u.CompletionTokens, 10)
}
