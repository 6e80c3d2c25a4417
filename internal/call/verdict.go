package call

import (
	"errors"
	"maps"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Judge is the pool's verdict on a call that failed. An error's class is decided in llm and converted to the pool's
// here, nowhere else; audit events and results spell it as [llm.Class.String] does.
func Judge(failure *llm.Error, x *llm.Exchange) pool.Verdict {
	return pool.Verdict{
		Class: poolClass(failure.Class), Origin: poolOrigin(failure.Origin), Alike: failure.Alike, Err: failure,
		Unsent: failure.Origin == llm.OfNetwork && !x.Sent,
		Hint:   aimd.Hint{RetryAfter: x.RetryAfter, Remaining0: x.Remaining0, Reset: x.Reset},
	}
}

// poolClass converts llm's classes, of which the zero one belongs to a cancelled attempt, to the pool's.
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

// poolOrigin converts llm's origins to the pool's.
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

// AsError returns the [*llm.Error] in err. Errors that are not llm's own get their class and reason here: a row that
// ran out of time, one that an outage held for too long, and a bug of the stage, such as a panic. The first two keep
// what is known of the last attempt.
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
