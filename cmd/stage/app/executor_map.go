package app

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"maps"
	mathrand "math/rand/v2"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// newID returns a random identifier that nobody can guess.
func newID() string { return rand.Text() }

var callIDs = base32.StdEncoding.WithPadding(base32.NoPadding)

// newCallID returns an identifier like that of newID, which no other call has. Calls are many and their identifiers no
// secret, so the bits come from the runtime's generator and not from the system each time.
func newCallID() string {
	var bits [16]byte
	binary.LittleEndian.PutUint64(bits[:8], mathrand.Uint64())
	binary.LittleEndian.PutUint64(bits[8:], mathrand.Uint64())
	var text [26]byte
	callIDs.Encode(text[:], bits[:])
	return string(text[:])
}

// poolClass translates llm's classes, of which the zero one belongs to a cancelled attempt, to the pool's.
func poolClass(c llm.Class) pool.Class {
	switch c {
	case llm.Capacity:
		return pool.Capacity
	case llm.Transient:
		return pool.Transient
	case llm.Permanent:
		return pool.Permanent
	case llm.Fatal:
		return pool.Fatal
	default:
		return pool.Cancelled
	}
}

// poolOrigin translates llm's origins to the pool's.
func poolOrigin(o llm.Origin) pool.Origin {
	switch o {
	case llm.OfServer:
		return pool.OfServer
	case llm.OfNetwork:
		return pool.OfNetwork
	case llm.OfHost:
		return pool.OfHost
	case llm.OfRequest:
	}
	return pool.OfJob
}

// judge is the pool's verdict on a call that failed.
func judge(fault *llm.Error, x *llm.Exchange) pool.Verdict {
	return pool.Verdict{
		Class: poolClass(fault.Class), Origin: poolOrigin(fault.Origin), Alike: fault.Alike, Err: fault,
		Unsent: fault.Origin == llm.OfNetwork && !x.Sent, Hint: hint(x),
	}
}

func hint(x *llm.Exchange) aimd.Hint {
	return aimd.Hint{RetryAfter: x.RetryAfter, Remaining0: x.Remaining0, Reset: x.Reset}
}

// asFault gives the errors that are not llm's own their reason: a row that ran out of time, one that an outage held for
// too long, and a panic of ours.
func asFault(err error) *llm.Error {
	last, ok := errors.AsType[*llm.Error](err)
	held := &llm.Error{Err: err}
	switch {
	case errors.Is(err, pool.ErrRowTimeout):
		held.Class, held.Reason = llm.Permanent, llm.ReasonRowTimeout
	case errors.Is(err, pool.ErrOutage):
		held.Class, held.Reason = llm.Transient, llm.ReasonAPICallFailed
		held.Facts = map[string]any{"status_code": nil, "provider_code": nil}
		if ok && last.Reason == held.Reason {
			maps.Copy(held.Facts, last.Facts)
		}
	case ok:
		return last
	default:
		return &llm.Error{Class: llm.Permanent, Reason: llm.ReasonInternalError, Err: err}
	}
	if ok {
		held.Provider, held.Status = last.Provider, last.Status
	}
	return held
}

func auditUsage(u *llm.Usage) *auditlog.Usage {
	if u == nil {
		return nil
	}
	return &auditlog.Usage{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, TotalTokens: u.TotalTokens,
		CachedTokens: u.CachedTokens, CacheWriteTokens: u.CacheWriteTokens, CacheWrite1hTokens: u.CacheWrite1hTokens,
		ReasoningTokens: u.ReasoningTokens, CostUSD: u.Cost,
	}
}

// unpriced reports whether a call may have been billed at an unknown cost. A call that was refused, or that failed with
// another status than 2xx and reported no usage, costs nothing.
func unpriced(c *auditlog.Call) bool {
	if c.Usage != nil {
		return c.Usage.CostUSD == nil
	}
	switch c.Status {
	case auditlog.CallSuccess, auditlog.CallUnknown:
		return true
	case auditlog.CallCapacityRetry:
		return false
	case auditlog.CallFailure:
	}
	return c.StatusCode/100 == 2
}

// usageSum is the usage of several calls. The zero value is that of none.
type usageSum struct {
	reported *auditlog.Usage // nil: no call reported any
	unpriced bool            // a call is not in the cost
}

// add adds what a call reported; see [unpriced].
func (s *usageSum) add(u *auditlog.Usage, unpriced bool) {
	s.reported = sumUsage(s.reported, u)
	s.unpriced = s.unpriced || unpriced
}

// total returns the sum, without a cost where that of a call is unknown. The caller must not change it.
func (s *usageSum) total() *auditlog.Usage {
	if !s.unpriced || s.reported == nil || s.reported.CostUSD == nil {
		return s.reported
	}
	u := clone(s.reported)
	u.CostUSD = nil
	return u
}

// sumUsage adds b to a. A nil one reports nothing and adds nothing; the sum is the other one itself then, for usage of
// calls is never changed. The cost of the sum is unknown as soon as that of a part is: what is known of it is counted by
// the ledger and the metrics. Cached, cache-write and reasoning tokens are those that were reported.
func sumUsage(a, b *auditlog.Usage) *auditlog.Usage {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	sum := cloneUsage(a)
	addUsage(sum, b)
	return sum
}

// addUsage adds b to a, which is changed.
func addUsage(a, b *auditlog.Usage) {
	a.PromptTokens += b.PromptTokens
	a.CompletionTokens += b.CompletionTokens
	a.TotalTokens += b.TotalTokens
	a.CachedTokens, a.ReasoningTokens = addKnown(a.CachedTokens, b.CachedTokens), addKnown(a.ReasoningTokens, b.ReasoningTokens)
	a.CacheWriteTokens = addKnown(a.CacheWriteTokens, b.CacheWriteTokens)
	a.CacheWrite1hTokens = addKnown(a.CacheWrite1hTokens, b.CacheWrite1hTokens)
	if a.CostUSD == nil || b.CostUSD == nil {
		a.CostUSD = nil
		return
	}
	*a.CostUSD += *b.CostUSD
}

// addKnown adds b to a as far as they are known. a may be changed.
func addKnown(a, b *int64) *int64 {
	if a == nil || b == nil {
		return cmp.Or(a, clone(b))
	}
	*a += *b
	return a
}

// cloneUsage returns a copy that may be changed; nil of nil.
func cloneUsage(u *auditlog.Usage) *auditlog.Usage {
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
