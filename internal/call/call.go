// Package call makes one audited, priced call to a provider or to a fallback.
package call

import (
	"errors"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Caller makes calls to the first provider and to the fallbacks: within the ceiling, each with its audit event, priced and
// counted. Rows and batched requests share it. Safe for concurrent use.
type Caller struct {
	*Targets
	ledger  *cost.Ledger
	stage   string               // its name
	runID   string               // of this process
	counted func(*auditlog.Call) // each call, once it is priced
}

// NewCaller returns what makes calls to t. counted is handed each call once it has its cost.
func NewCaller(t *Targets, l *cost.Ledger, stage, runID string, counted func(*auditlog.Call)) *Caller {
	return &Caller{Targets: t, ledger: l, stage: stage, runID: runID, counted: counted}
}

// RunID names the process in the events of its calls.
func (c *Caller) RunID() string { return c.runID }

// Affordable returns an error where a row or prompt names a model of its own that has no price, and there is a ceiling.
func (c *Caller) Affordable(model string) error {
	return c.ledger.Affords(c.At(0).Provider(), model)
}

// Exhausted returns why no call may start: the ceiling is reached; nil: one may.
func (c *Caller) Exhausted() error { return c.ledger.Exhausted() }

// Outcome is all that came of one call.
type Outcome struct {
	Exchange *llm.Exchange
	Event    *auditlog.Call
	Err      *llm.Error // nil: it succeeded
}

// Outcome makes the audit event of a call that a target was sent, with its cost. err is why the call failed, or why its
// reply is not taken. Once the event is recorded, the outcome must be handed to [Caller.Count].
func (c *Caller) Outcome(target int, p *llm.Prepared, a pool.Attempt, x *llm.Exchange, err error) Outcome {
	o := Outcome{Exchange: x}
	o.Err, _ = errors.AsType[*llm.Error](err)
	o.Event = c.event(c.At(target), p.Model, a, x, o.Err)
	return o
}

// Count counts a call's cost towards the ceiling, and the call in totals and metrics.
func (c *Caller) Count(o Outcome) {
	c.ledger.Spend(o.Event)
	c.counted(o.Event)
}

// Verdict is what the pool makes of the call.
func (o Outcome) Verdict() pool.Verdict {
	verdict := pool.Verdict{}
	if o.Err != nil {
		verdict = Judge(o.Err, o.Exchange)
	}
	if o.Event.Usage != nil {
		verdict.Weight = o.Event.Usage.TotalTokens
	}
	return verdict
}

// event is the audit event of one call; whoever asked for it fills in its identity.
func (c *Caller) event(t *target, model string, a pool.Attempt, x *llm.Exchange, fault *llm.Error) *auditlog.Call {
	e := &auditlog.Call{
		Header:   auditlog.Header{Time: time.Now(), RunID: c.runID, Stage: c.stage},
		CallID:   newCallID(),
		Provider: t.Provider(), Model: model,
		Status: auditlog.CallSuccess, StatusCode: x.Status,
		Latency: x.Latency, DispatchDelay: a.DispatchDelay, RetryAfter: x.RetryAfter,
		RequestHash: llm.Hash(x.Request), Request: x.Request, Response: x.Response,
	}
	if len(x.Response) > 0 {
		e.ResponseHash = llm.Hash(x.Response)
	}
	if x.Reply != nil {
		e.Usage = auditUsage(x.Reply.Usage)
		c.ledger.Price(e, x.Reply.Model)
	}
	if fault == nil {
		return e
	}
	e.ErrorClass, e.Error = fault.Class.String(), fault.Error()
	switch {
	case fault.Class == llm.Capacity:
		e.Status = auditlog.CallCapacityRetry
	case x.Unknown:
		e.Status = auditlog.CallUnknown // it may have been answered, and billed
	default:
		e.Status = auditlog.CallFailure
	}
	return e
}
