package executor

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// attemptErrorsMax bounds the errors kept of one row, which may wait for capacity for days: the first and the last ones.
const attemptErrorsMax = 64

var errNotWanted = errors.New("the row belongs to another replica now")

// attempt makes one call for the job, on a worker of the pool.
func (e *Executor) attempt(ctx context.Context, j *job, a pool.Attempt) (struct{}, pool.Verdict) {
	if verdict, refused := e.refuse(j); refused {
		return struct{}{}, verdict
	}
	if err := e.addressTo(j, a.Server); err != nil {
		fault := call.AsError(err)
		return struct{}{}, e.failed(j, a, fault, call.Judge(fault, &llm.Exchange{}))
	}
	e.renewKey(a)
	call, reply, span := e.call(ctx, j, a)
	e.record(j, a, call)
	span.End(call.Event, call.Exchange, call.Fault)
	if call.Fault != nil {
		return struct{}{}, e.failed(j, a, call.Fault, call.Verdict())
	}
	e.landed(j, reply)
	return struct{}{}, call.Verdict()
}

// refuse makes no call for a row that another replica owns by now, nor for any row at the cost ceiling.
func (e *Executor) refuse(j *job) (verdict pool.Verdict, refused bool) {
	if !j.row.Wanted() {
		return pool.Verdict{Class: pool.Cancelled, Err: errNotWanted, Unsent: true}, true
	}
	if err := e.caller.Exhausted(); err != nil {
		return pool.Verdict{Class: pool.Fatal, Err: err, Unsent: true}, true
	}
	return verdict, false
}

// addressTo prepares the request for the server that the pool chose, unless it is already.
func (e *Executor) addressTo(j *job, server int) error {
	if server == j.target {
		return nil
	}
	return e.address(j, server)
}

// address makes the bytes that go over the wire to a target. A model that the row names is asked of the first one alone:
// others would not know it.
func (e *Executor) address(j *job, to int) (err error) {
	j.request.Model = e.caller.At(to).Model()
	if to == 0 && j.model != "" {
		j.request.Model = j.model
	}
	if j.target != to { // what one model was told of its reply means nothing to another
		j.request.Rejected, j.request.Complaint = "", ""
	}
	j.target = to
	j.prepared, err = e.caller.At(to).Prepare(&j.request)
	return err
}

// renewKey reads the keys again before a probe of a paused stage: they may be what was fixed.
func (e *Executor) renewKey(a pool.Attempt) {
	if !a.Probe {
		return
	}
	if err := e.caller.ReloadKey(); err != nil {
		e.log.Warn("key not read again, the old one stays", slog.Any("error", err))
	}
}

// call sends the request and validates the reply. The span ends with the exchange; what follows is our own work.
func (e *Executor) call(ctx context.Context, j *job, a pool.Attempt) (call call.Outcome, reply *answer, span *tracing.Call) {
	to := e.caller.At(j.target)
	e.logStarted(j.row, a)
	span = tracing.Of(j.row).Call(ctx, to.Provider(), j.prepared, &j.request, a)
	x, err := to.Do(ctx, j.prepared)
	span.Over()
	if err == nil {
		reply, err = e.accept(j, x)
	}
	return e.caller.Outcome(j.target, j.prepared, a, x, err), reply, span
}

// accept validates a reply and builds the result of it, here on the worker, where many can do so at once.
func (e *Executor) accept(j *job, x *llm.Exchange) (*answer, error) {
	a := &answer{Text: x.Reply.Text, Model: x.Reply.Model, Usage: x.Reply.Usage}
	if a.Model == "" {
		a.Model = j.prepared.Model
	}
	var err error
	if j.body, j.tooLarge, err = e.prompt.result(j, a); err != nil {
		// Ask again, and say what was wrong.
		if fault, ok := errors.AsType[*llm.Error](err); ok {
			fault.Provider, fault.Status = e.caller.At(j.target).Provider(), x.Status
		}
		j.request.Rejected, j.request.Complaint = x.Reply.Text, llm.Complaint(err)
		if again := e.address(j, j.target); again != nil {
			return nil, again
		}
		return nil, err
	}
	return a, nil
}

// record puts the call into the audit, the books, the row's own sum and the log.
func (e *Executor) record(j *job, a pool.Attempt, call call.Outcome) {
	j.row.RecordCall(call.Event)
	e.caller.Count(call)
	if e.Show != nil {
		e.Show(call.Event.CallID, e.cfg.Secrets().Redact(j.row.Body)) // the row's own words, a secret among them perhaps
	}
	j.usage.Add(call.Event.Usage, call.Event.Unpriced())
	e.logCall(j.row, a, call.Event, call.Fault)
}

// failed adds a failed attempt to the chain that an error result shows.
func (e *Executor) failed(j *job, a pool.Attempt, fault *llm.Error, verdict pool.Verdict) pool.Verdict {
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

// alikeError is an error that all rows meet where the settings are wrong, with the request that met it.
type alikeError struct {
	fault   *llm.Error
	request *llm.Prepared
}

func (e *alikeError) Error() string { return e.fault.Error() }

func (e *alikeError) Unwrap() error { return e.fault }

// Shape shows the request without its contents.
func (e *alikeError) Shape() string { return e.request.Shape() }
