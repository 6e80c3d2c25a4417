package call

import (
	"errors"
	"maps"
	"strings"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// AsError returns the [*llm.Error] in err. Errors that are not llm's own get their class
// and reason here: a row that ran out of time, one that an outage held for too long, and
// a bug of the stage, such as a panic. The first two keep what is known of the last
// attempt. An outage's is of another row's call, so its words, which may quote that row,
// are left out.
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
		if ok && last.Status != 0 {
			held.Err = errors.New(strings.TrimSuffix(err.Error(), ": "+last.Err.Error()))
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
