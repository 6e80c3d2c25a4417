package call

import (
	"errors"
	"maps"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

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

// Judge is the pool's verdict on a call that failed.
func Judge(fault *llm.Error, x *llm.Exchange) pool.Verdict {
	return pool.Verdict{
		Class: poolClass(fault.Class), Origin: poolOrigin(fault.Origin), Alike: fault.Alike, Err: fault,
		Unsent: fault.Origin == llm.OfNetwork && !x.Sent, Hint: hint(x),
	}
}

func hint(x *llm.Exchange) aimd.Hint {
	return aimd.Hint{RetryAfter: x.RetryAfter, Remaining0: x.Remaining0, Reset: x.Reset}
}

// AsError gives the errors that are not llm's own their reason: a row that ran out of time, one that an outage held for
// too long, and a panic of ours.
func AsError(err error) *llm.Error {
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
