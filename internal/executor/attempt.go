package executor

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// attemptErrorsMax bounds the errors kept of one row, which may wait for capacity for
// days: the first one and the last 63 are kept.
const attemptErrorsMax = 64

var errNotWanted = errors.New("the row belongs to another replica now")

// attempt makes one call for the job, on a worker of the pool.
func (e *Executor) attempt(ctx context.Context, j *job, a pool.Attempt) (struct{}, pool.Verdict) {
	if j.prompt != nil {
		return struct{}{}, j.prompt.attempt(ctx, a)
	}
	if j.group != nil {
		return struct{}{}, e.gathering.attempt(ctx, j.group, a)
	}
	if verdict, refused := e.refuse(j); refused {
		return struct{}{}, verdict
	}
	if a.Server != j.target {
		if err := j.address(e.caller, a.Server); err != nil {
			failure := call.AsError(err)
			return struct{}{}, e.failed(j, a, failure, pooled.Judge(failure, &llm.Exchange{}))
		}
	}
	e.reloadKey(a)
	loaded, release, verdict, err := e.media.load(ctx, j, a)
	if err != nil {
		return struct{}{}, verdict
	}
	outcome, reply, span := e.call(ctx, j, a, loaded)
	release()
	e.record(j, a, outcome)
	span.End(outcome.Event, outcome.Exchange, outcome.Err)
	if outcome.Err != nil {
		return struct{}{}, e.failed(j, a, outcome.Err, outcome.Verdict())
	}
	e.Sharing.reply(j, reply)
	return struct{}{}, outcome.Verdict()
}

// refuse returns a verdict in place of a call for a row that is not wanted, because another
// replica owns it or its result could not be stored; for an element whose row fails
// whatever the reply; and for any row at the cost ceiling.
func (e *Executor) refuse(j *job) (verdict pool.Verdict, refused bool) {
	if !j.row.Wanted() {
		return pool.Verdict{Class: pool.Cancelled, Err: errNotWanted, Unsent: true}, true
	}
	if j.fan != nil {
		if tooLarge := j.fan.tooLarge(); tooLarge != nil { // since it was queued
			j.skipped = true
			return pool.Verdict{Class: pool.Permanent, Err: tooLarge, Unsent: true}, true
		}
	}
	if err := e.caller.Exhausted(); err != nil {
		return pool.Verdict{Class: pool.Fatal, Err: err, Unsent: true}, true
	}
	return verdict, false
}

// reloadKey reloads the API keys before a probe of a paused stage: they may be what was
// fixed.
func (e *Executor) reloadKey(a pool.Attempt) {
	if !a.Probe {
		return
	}
	if _, err := e.caller.ReloadKey(); err != nil {
		e.log.Warn("key not reloaded, keeping the old one", slog.Any("error", err))
	}
}

// call sends the request, with its media loaded, and accepts the reply. The span ends with
// the exchange, because what follows is the stage's own work.
func (e *Executor) call(ctx context.Context, j *job, a pool.Attempt, loaded *llm.Prepared) (outcome call.Outcome, reply *answer, span *tracing.Call) {
	to := e.caller.At(j.target)
	e.log.started(j, a)
	span = tracing.FromRow(j.row).Call(ctx, to.Provider(), j.prepared, &j.request, a)
	place := e.caller.Began(e.ongoing(j, a, to.Provider(), j.prepared.Model))
	x, err := to.Do(ctx, loaded)
	e.caller.Ended(place)
	span.ExchangeEnded()
	if err == nil {
		err = call.Guarded(func() (err error) {
			reply, err = e.accept(j, x)
			return err
		})
	}
	return e.caller.Outcome(j.target, j.prepared, a, x, err), reply, span
}

// ongoing describes the call that is about to be made.
func (e *Executor) ongoing(j *job, a pool.Attempt, provider, model string) call.Ongoing {
	o := call.Ongoing{
		Partition: j.row.Partition, Sequence: j.row.Seq, Attempt: j.attempts + j.capacityRetries + a.Number,
		Provider: provider, Model: model,
	}
	if j.fan != nil {
		o.Item = new(j.index)
	}
	return o
}

// accept validates a reply and builds the result, on the worker, where many can do so at
// once. After a reply that does not satisfy the schema the job's next request quotes it
// and says what was wrong.
func (e *Executor) accept(j *job, x *llm.Exchange) (*answer, error) {
	a := &answer{Text: x.Reply.Text, Model: x.Reply.Model, Usage: x.Reply.Usage}
	if a.Model == "" {
		a.Model = j.prepared.Model
	}
	if parts := j.request.Kept(); parts != 0 {
		a.Kept = x.Reply.Values(parts)
		e.prompt.findReasoning(a)
	}
	var err error
	j.form = e.prompt.form(a)
	if j.body, j.tooLarge, err = e.prompt.result(j, a); err == nil {
		return a, nil
	}
	if failure, ok := errors.AsType[*llm.Error](err); ok {
		failure.Provider, failure.Status = e.caller.At(j.target).Provider(), x.Status
	}
	j.request.Rejected, j.request.Complaint = x.Reply.Text, llm.Complaint(err)
	if unprepared := j.address(e.caller, j.target); unprepared != nil {
		return nil, unprepared
	}
	return nil, err
}

// storingCall is what a row waits for while the audit has no room for the event of its
// call.
const storingCall = "the event of its call"

// record adds the call to the audit, the cost ledger, the row's own sum and the log.
func (e *Executor) record(j *job, a pool.Attempt, outcome call.Outcome) {
	if j.fan != nil {
		outcome.Event.Item = new(j.index)
	}
	place := e.steps.enter(hold.Storing, storingCall, outcome.Event.Time, j)
	if e.gathering != nil { // a line of the batch lane, which is for one text
		j.hash.add(e.gathering.recordCall([]*job{j}, outcome.Event))
	} else {
		j.hash.add(j.row.RecordCall(outcome.Event))
	}
	e.steps.leave(place)
	j.calls++
	e.caller.Count(outcome)
	e.caller.NoteRefusal(outcome, j.texts)
	if e.Show != nil {
		e.Show(outcome.Event.CallID, e.cfg.Secrets().Redact(j.row.Body)) // a row may quote a secret
	}
	j.usage.Add(outcome.Event.Usage, outcome.Event.Unpriced())
	e.log.call(j, a, outcome.Event, outcome.Err, j.texts)
}

// texts returns the row and the texts of the request: a provider's message may quote
// either. They differ where a filter of the template changes the row's words, as in
// "{{ row.name | upper }}".
func (j *job) texts() []string {
	return append([]string{string(j.row.Body), j.request.Context, j.request.Prompt, j.request.Rejected}, j.request.Texts()...)
}

// failed adds a failed attempt to those that an error result lists, and returns the verdict.
// An error that all rows meet if the settings are wrong comes with the request that met it.
// A row that was redriven shows nothing about the settings.
func (e *Executor) failed(j *job, a pool.Attempt, failure *llm.Error, verdict pool.Verdict) pool.Verdict {
	if verdict.Class == pool.Cancelled {
		return verdict
	}
	if len(j.errors) == attemptErrorsMax {
		j.errors = slices.Delete(j.errors, 1, 2)
	}
	j.errors = append(j.errors, auditlog.AttemptError{
		Attempt: j.attempts + j.capacityRetries + a.Number, Provider: failure.Provider, Class: failure.Class.String(), StatusCode: failure.Status, Error: failure.Error(),
	})
	switch {
	case failure.Alike == "":
	case streams.RedriveOf(j.row.Header, e.cfg.Name, e.cfg.Input.Stream) > 0:
		verdict.Alike = "" // the row has failed among others that did not: it proves nothing about the settings
	default:
		verdict.Err = &alikeError{failure: failure, request: j.prepared}
	}
	return verdict
}

// alikeError is an error that all rows meet if the settings are wrong, with the request
// that met it.
type alikeError struct {
	failure *llm.Error
	request *llm.Prepared
}

// Error is the text of the provider's error.
func (e *alikeError) Error() string { return e.failure.Error() }

// Unwrap returns the provider's error.
func (e *alikeError) Unwrap() error { return e.failure }

// Shape shows the request without its contents, for the log of a pause.
func (e *alikeError) Shape() string { return e.request.Shape() }
