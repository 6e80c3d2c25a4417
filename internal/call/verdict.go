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
		Class: poolClasses[failure.Class], Origin: poolOrigins[failure.Origin], Alike: failure.Alike, Err: failure,
		Unsent: failure.Origin == llm.OfNetwork && !x.Sent, Absent: failure.Absent,
		Hint: aimd.Hint{RetryAfter: x.RetryAfter, Remaining0: x.Remaining0, Reset: x.Reset},
	}
}

// poolClasses has the pool's class for each of llm's, of which the zero one belongs to a cancelled attempt.
var poolClasses = [...]pool.Class{
	0: pool.Cancelled, llm.Capacity: pool.Capacity, llm.Transient: pool.Transient, llm.Permanent: pool.Permanent, llm.Fatal: pool.Fatal,
}

// poolOrigins has the pool's origin for each of llm's.
var poolOrigins = [...]pool.Origin{
	llm.OfRequest: pool.OfJob, llm.OfServer: pool.OfServer, llm.OfNetwork: pool.OfNetwork, llm.OfHost: pool.OfHost,
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
