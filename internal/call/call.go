// Package call makes the calls to providers: targets (target.go), one audited and priced
// call (call.go), what is in flight (ongoing.go), and the ends of batches for commands
// (batches.go).
package call

import (
	"errors"
	"net/http"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// Caller makes calls to the first provider and to the fallbacks: within the cost ceiling,
// each priced, with its audit event, and counted. Rows and batched requests share it.
// It is safe for concurrent use.
//
// A call goes through [Caller.Affordable] once for its row or prompt, then for each
// attempt [Caller.Exhausted], [Caller.Began], [llm.Client.Do] on the [Target] that the
// pool chose, [Caller.Outcome], [Caller.Count] and [Caller.NoteRefusal].
type Caller struct {
	*Targets
	ledger  *cost.Ledger
	stage   string
	runID   string
	counted func(Outcome)
	ongoing ongoing

	// Refused is called when a provider refuses a call, whatever its row is, with what it
	// says: without text of the row. It is set before the first call, must be safe for
	// concurrent use, and must not block. It may be nil.
	Refused func(Refusal)
}

// NewCaller returns a caller for the targets. stage is the stage's name and runID names
// the process, both for audit events. counted is called with each call once it is priced;
// it must be safe for concurrent use.
func NewCaller(t *Targets, l *cost.Ledger, stage, runID string, counted func(Outcome)) *Caller {
	return &Caller{Targets: t, ledger: l, stage: stage, runID: runID, counted: counted}
}

// RunID names the process in the events of its calls.
func (c *Caller) RunID() string { return c.runID }

// Affordable returns an [*llm.Error] if a row or prompt names its own model and that has
// no price while there is a cost ceiling. An empty model stands for the configured one,
// whose price the configuration checks.
func (c *Caller) Affordable(model string) error {
	return c.ledger.Affords(c.At(0).Provider(), model)
}

// Exhausted returns an error that wraps [cost.ErrCeiling] once the cost ceiling is
// reached, and nil while calls may start.
func (c *Caller) Exhausted() error { return c.ledger.Exhausted() }

// Outcome is the outcome of one call.
type Outcome struct {
	// Exchange is what was sent and received.
	Exchange *llm.Exchange
	// Event is the audit event, priced. The caller sets what it belongs to: a row or a
	// batch.
	Event *auditlog.Call
	// Err is why the call failed or its reply was not accepted. It is nil if the call
	// succeeded.
	Err *llm.Error
	// Target is the host, port and path that the request was sent to.
	Target string

	// outdated means that the provider refused a key that has been replaced by another since
	// the call began.
	outdated bool
}

// Outcome makes the audit event of a call to a target, with its cost. err is why the call
// failed, or why its reply is not accepted. After the event is recorded, the outcome must
// be passed to [Caller.Count].
func (c *Caller) Outcome(
	target int, p *llm.Prepared, a pool.Attempt, x *llm.Exchange, err error,
) Outcome {
	o := c.outcome(target, p, a, x, err)
	o.Event.CallID = newCallID()
	c.price(o)
	return o
}

// LineOutcome is [Caller.Outcome] for a call that the first provider answered by a line of
// a batch: callID is the line's custom id, batchID the provider's id of the batch.
func (c *Caller) LineOutcome(
	p *llm.Prepared, x *llm.Exchange, err error, callID, batchID string,
) Outcome {
	o := c.outcome(0, p, pool.Attempt{}, x, err)
	o.Event.CallID, o.Event.BatchID, o.Event.Lane = callID, batchID, auditlog.LaneBatch
	c.price(o)
	return o
}

func (c *Caller) outcome(
	target int, p *llm.Prepared, a pool.Attempt, x *llm.Exchange, err error,
) Outcome {
	o := Outcome{Exchange: x, Target: p.Target()}
	o.Err, _ = errors.AsType[*llm.Error](err)
	o.Event = c.event(c.At(target), p.Model, a, x, o.Err)
	o.outdated = o.Err != nil && refusesKey(o.Err) && c.replaced(target, x)
	return o
}

// refusesKey reports whether a provider refused a call for its credential.
func refusesKey(e *llm.Error) bool {
	return e.Class == llm.Fatal && (e.Status == http.StatusUnauthorized ||
		e.Status == http.StatusForbidden)
}

func (c *Caller) price(o Outcome) {
	if r := o.Exchange.Reply; r != nil {
		c.ledger.Price(o.Event, r.Model)
	}
}

// ReadLine reads a line of a batch without its row. It returns what the line used and
// costs, or nil if that is nothing or unknown, and why the line is no reply, or nil if it
// is one.
func (c *Caller) ReadLine(model string, status int, body []byte) (*auditlog.Usage, *llm.Error) {
	o, ok := c.lineAlone(model, status, body, "", "")
	if !ok {
		return nil, nil
	}
	return o.Event.Usage, o.Err
}

// UnusedLine is [Caller.LineOutcome] for a reply that no row takes. It reports false if no
// model can have this name.
func (c *Caller) UnusedLine(
	model string, status int, body []byte, callID, batchID string,
) (o Outcome, ok bool) {
	if o, ok = c.lineAlone(model, status, body, callID, batchID); ok {
		o.Event.Unused = true
	}
	return o, ok
}

// lineAlone returns the outcome of a line whose request is not at hand. It reports false if
// no model can have this name.
func (c *Caller) lineAlone(
	model string, status int, body []byte, callID, batchID string,
) (Outcome, bool) {
	// The prompt stands in for the real one. It must not be empty, or it would be refused.
	p, err := c.At(0).Prepare(&llm.Request{Model: model, Prompt: "of another process"})
	if err != nil {
		return Outcome{}, false
	}
	x, err := c.At(0).ReadReply(p, status, body)
	x.Request = nil
	return c.LineOutcome(p, x, err, callID, batchID), true
}

// AffordableByBatch reports whether a request may go by the provider's Batch API: with a
// cost ceiling only one to a model with a price for it.
func (c *Caller) AffordableByBatch(p *llm.Prepared) bool {
	return c.ledger.AffordsBatch(c.At(0).Provider(), p.Model)
}

// assumedReplyTokens is what a reply is taken to have at most, for the estimate of a
// batch's cost, where STAGE_LLM_MAX_TOKENS does not say.
const assumedReplyTokens = 1024

// EstimateBatch estimates what a request may use by the provider's Batch API, in tokens and
// in USD. The USD are 0 if the price is unknown.
func (c *Caller) EstimateBatch(p *llm.Prepared, r *llm.Request) (tokens int64, usd float64) {
	prompt, completion := promptTokens(p), int64(assumedReplyTokens)
	switch {
	case c.At(0).Task() == llm.TaskEmbed:
		completion = 0
	case r.MaxTokens != nil:
		completion = int64(*r.MaxTokens)
	}
	return EstimateTokens(p, r), c.ledger.EstimateBatch(c.At(0).Provider(), p.Model, prompt,
		completion)
}

// Count adds the call's cost to what counts towards the ceiling, and the call to totals
// and metrics.
func (c *Caller) Count(o Outcome) {
	c.ledger.Spend(o.Event)
	c.counted(o)
}

// Verdict is the call's verdict for the pool, with the tokens that the provider counted. A
// refused key that has been replaced meanwhile pauses nothing: the call is made again with
// the new one, and costs its row no attempt.
func (o Outcome) Verdict() pool.Verdict {
	verdict := pool.Verdict{}
	switch {
	case o.outdated:
		verdict = pool.Verdict{Class: pool.Capacity, Origin: pool.OfHost, Err: o.Err}
	case o.Err != nil:
		verdict = pooled.Judge(o.Err, o.Exchange)
	}
	if o.Event.Usage != nil {
		verdict.Weight, verdict.Output = o.Event.Usage.TotalTokens, o.Event.Usage.CompletionTokens
	}
	return verdict
}

// event is the audit event of one call, without its name, its cost and what it belongs to.
func (c *Caller) event(
	t *Target, model string, a pool.Attempt, x *llm.Exchange, failure *llm.Error,
) *auditlog.Call {
	e := &auditlog.Call{
		Header:   auditlog.Header{Time: time.Now(), RunID: c.runID, Stage: c.stage},
		Provider: t.Provider(), Model: model,
		Status: auditlog.CallSuccess, StatusCode: x.Status,
		Latency: x.Latency, DispatchDelay: a.DispatchDelay, RetryAfter: x.RetryAfter,
		Request: x.Request, Response: x.Response,
	}
	if len(x.Request) > 0 {
		e.RequestHash = llm.Hash(x.Request)
	}
	if len(x.Response) > 0 {
		e.ResponseHash = llm.Hash(x.Response)
	}
	if x.Reply != nil {
		e.Usage = auditUsage(x.Reply.Usage)
	}
	if failure == nil {
		return e
	}
	e.ErrorClass, e.Error = failure.Class.String(), failure.Error()
	switch {
	case failure.Class == llm.Capacity:
		e.Status, e.Belief, e.Throttled = auditlog.CallCapacityRetry, a.Belief.Text(a.Dispatched),
			a.Throttled
	case x.Unknown:
		e.Status = auditlog.CallUnknown // it may have been answered, and billed
	default:
		e.Status = auditlog.CallFailure
	}
	return e
}

// auditUsage returns the usage as audit events spell it, or nil if none was reported.
func auditUsage(u *llm.Usage) *auditlog.Usage {
	if u == nil {
		return nil
	}
	return &auditlog.Usage{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
		TotalTokens:  u.TotalTokens,
		CachedTokens: u.CachedTokens, CacheWriteTokens: u.CacheWriteTokens,
		CacheWrite1hTokens: u.CacheWrite1hTokens,
		ReasoningTokens:    u.ReasoningTokens, CostUSD: u.Cost,
	}
}
