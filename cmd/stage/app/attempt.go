package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// attemptErrorsMax bounds the errors kept of one row, which may wait for capacity for days: the first and the last ones.
const attemptErrorsMax = 64

// address makes the bytes that go over the wire to a target. A model that the row names is asked of the first one alone:
// others would not know it.
func (e *executor) address(j *job, to int) (err error) {
	j.request.Model = e.caller.targets[to].Model()
	if to == 0 && j.model != "" {
		j.request.Model = j.model
	}
	if j.target != to { // what one model was told of its reply means nothing to another
		j.request.Rejected, j.request.Complaint = "", ""
	}
	j.target = to
	j.prepared, err = e.caller.targets[to].Prepare(&j.request)
	return err
}

// attempt makes one call for the job.
func (e *executor) attempt(ctx context.Context, j *job, a pool.Attempt) (struct{}, pool.Verdict) {
	if !j.row.Wanted() {
		return struct{}{}, pool.Verdict{Class: pool.Cancelled, Err: errNotWanted, Unsent: true}
	}
	if err := e.ledger.exhausted(); err != nil {
		return struct{}{}, pool.Verdict{Class: pool.Fatal, Err: err, Unsent: true}
	}
	if a.Server != j.target {
		if err := e.address(j, a.Server); err != nil {
			return struct{}{}, e.failed(j, a, asFault(err), &llm.Exchange{})
		}
	}
	if a.Probe {
		if err := e.caller.reloadKey(); err != nil {
			e.log.Warn("key not read again, the old one stays", slog.Any("error", err))
		}
	}
	e.logStarted(j.row, a)
	span := traceOf(j.row).call(ctx, e, j, a)
	x, err := e.caller.targets[j.target].Do(ctx, j.prepared)
	span.over()
	var reply *answer
	if err == nil {
		reply, err = e.accept(j, x)
	}
	fault, _ := errors.AsType[*llm.Error](err)
	call := e.callEvent(e.caller.targets[j.target], j.prepared.Model, a, x, fault)
	j.row.RecordCall(call)
	e.ledger.spend(call)
	e.called(call)
	if e.show != nil {
		e.show(call.CallID, e.cfg.secrets.redact(j.row.Body)) // the row's own words, a secret among them perhaps
	}
	j.usage.Add(call.Usage, call.Unpriced())
	e.logCall(j.row, a, call, fault)
	span.end(call, x, fault)
	verdict := pool.Verdict{}
	if fault == nil {
		e.landed(j, reply)
	} else {
		verdict = e.failed(j, a, fault, x)
	}
	if call.Usage != nil {
		verdict.Weight = call.Usage.TotalTokens
	}
	return struct{}{}, verdict
}

var errNotWanted = errors.New("the row belongs to another replica now")

// failed adds a failed attempt to the chain and judges it.
func (e *executor) failed(j *job, a pool.Attempt, fault *llm.Error, x *llm.Exchange) pool.Verdict {
	verdict := judge(fault, x)
	if verdict.Class == pool.Cancelled {
		return verdict
	}
	if len(j.errors) == attemptErrorsMax {
		j.errors = slices.Delete(j.errors, 1, 2)
	}
	j.errors = append(j.errors, auditlog.AttemptError{
		Attempt: a.Number, Provider: fault.Provider, Class: fault.Class.String(), StatusCode: fault.Status, Error: fault.Error(),
	})
	if fault.Alike != "" {
		verdict.Err = &alikeError{fault: fault, request: j.prepared}
	}
	return verdict
}

// accept validates a reply and builds the result of it, here on the worker, where many can do so at once.
func (e *executor) accept(j *job, x *llm.Exchange) (*answer, error) {
	a := &answer{Text: x.Reply.Text, Model: x.Reply.Model, Usage: x.Reply.Usage}
	if a.Model == "" {
		a.Model = j.prepared.Model
	}
	var err error
	if j.body, j.tooLarge, err = e.prompt.result(j, a); err != nil {
		// Ask again, and say what was wrong.
		if fault, ok := errors.AsType[*llm.Error](err); ok {
			fault.Provider, fault.Status = e.caller.targets[j.target].Provider(), x.Status
		}
		j.request.Rejected, j.request.Complaint = x.Reply.Text, e.prompt.schema.Complaint(err)
		if again := e.address(j, j.target); again != nil {
			return nil, again
		}
		return nil, err
	}
	return a, nil
}

// callEvent is the audit event of one attempt; its identity is filled in by the row, or the batch.
func (e *executor) callEvent(t *target, model string, a pool.Attempt, x *llm.Exchange, fault *llm.Error) *auditlog.Call {
	c := &auditlog.Call{
		Header:   auditlog.Header{Time: time.Now(), RunID: e.runID, Stage: e.cfg.Name},
		CallID:   newCallID(),
		Provider: t.Provider(), Model: model,
		Status: auditlog.CallSuccess, StatusCode: x.Status,
		Latency: x.Latency, DispatchDelay: a.DispatchDelay, RetryAfter: x.RetryAfter,
		RequestHash: llm.Hash(x.Request), Request: x.Request, Response: x.Response,
	}
	if len(x.Response) > 0 {
		c.ResponseHash = llm.Hash(x.Response)
	}
	if x.Reply != nil {
		c.Usage = auditUsage(x.Reply.Usage)
		e.ledger.price(c, x.Reply.Model)
	}
	if fault == nil {
		return c
	}
	c.ErrorClass, c.Error = fault.Class.String(), fault.Error()
	switch {
	case fault.Class == llm.Capacity:
		c.Status = auditlog.CallCapacityRetry
	case x.Unknown:
		c.Status = auditlog.CallUnknown // it may have been answered, and billed
	default:
		c.Status = auditlog.CallFailure
	}
	return c
}
