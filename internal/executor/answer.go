package executor

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/pool"
)

// answer is a reply that serves every row with the same request. The store keeps it as
// JSON.
type answer struct {
	Text  string     `json:"text"`
	Model string     `json:"model"`
	Usage *llm.Usage `json:"usage"`
	// Kept holds the parts that were kept beside the text, by name. A part that the reply
	// lacks is null. A part that was not kept is missing.
	Kept map[string]json.RawMessage `json:"kept,omitempty"`
}

// callsTools reports whether the reply calls tools. Its text may be empty then, and is not
// what the response schema is about.
func (a *answer) callsTools() bool {
	calls := a.Kept["tool_calls"]
	return len(calls) > 0 && calls[0] == '['
}

// bytes returns how many bytes the memory of a reply takes.
func (a *answer) bytes() int {
	n := len(a.Text)
	for _, value := range a.Kept {
		n += len(value)
	}
	return n
}

// serves reports whether the reply has all parts that are wanted now.
func (a *answer) serves(parts llm.Keep) bool {
	for name := range parts.Names() {
		if _, ok := a.Kept[name]; !ok {
			return false
		}
	}
	return true
}

// done answers the row with the outcome of its job. It runs on the pool's goroutine or, for
// a job that the pool does not have, on the one that gives it up.
func (e *Executor) done(r result) {
	j := r.In
	if j.prompt != nil {
		j.prompt.ended <- r.Err
		return
	}
	if j.group != nil {
		e.gathering.done(r)
		return
	}
	away := j.away && r.Class == pool.Cancelled
	if j.prepared, j.away = nil, false; !away {
		j.request = llm.Request{}
	}
	e.Sharing.finish(&r)
	switch {
	case away:
		j.spent = j.after(&r)
		e.media.lookAgain(j)
	case r.Class == pool.Cancelled:
		j.spent = j.after(&r)
		e.giveBack(j)
	case j.skipped:
		r.Attempts--
		e.answerError(j, r.Err, &r, "")
	case r.Err != nil:
		e.answerError(j, r.Err, &r, auditlog.SourceCall)
	default:
		e.succeed(j, &r)
	}
}

// succeed answers the row with the reply that was accepted.
func (e *Executor) succeed(j *job, r *result) {
	if j.tooLarge != nil {
		e.answerError(j, j.tooLarge, r, auditlog.SourceCall)
		return
	}
	e.answer(j, &consumer.Reply{Body: j.body, Event: e.event(j, r, auditlog.SourceCall), RequestHash: j.key, Form: j.form})
}

// answerWith answers the job with the reply to an equal request. It reports false if the
// reply can't serve, which is only true of one that was stored with other settings: under
// another schema, or without parts that are kept now.
func (e *Executor) answerWith(j *job, a *answer, stored bool) bool {
	if !a.serves(j.request.Kept()) {
		return false
	}
	body, tooLarge, err := e.prompt.result(j, a)
	if err != nil {
		return false
	}
	if tooLarge != nil {
		e.answerError(j, tooLarge, e.uncalled(j), auditlog.SourceDedupe)
		return true
	}
	reply := consumer.Reply{Body: body, Event: e.event(j, e.uncalled(j), auditlog.SourceDedupe), RequestHash: j.key, Form: e.prompt.form(a)}
	if stored {
		reply.RequestHash = "" // it is kept already
	}
	e.answer(j, &reply)
	return true
}

// answerError answers the row with an error result. source is where the error came from. It
// is empty if no call was made.
func (e *Executor) answerError(j *job, err error, r *result, source string) {
	failure := call.AsError(err)
	if e.logPanic(j, err) {
		if all := j.after(r); all.attempts+all.capacityRetries > j.calls { // it was before the call
			r.Attempts--
		}
		if j.calls == 0 {
			source = ""
		}
	}
	event := e.event(j, r, source)
	event.Reason, event.Errors = string(failure.Reason), withCause(j.errors, failure)
	reply := consumer.Reply{Body: e.prompt.errorBody(j.parsed, j.row, failure, j.errors), Failed: true, Event: event}
	if source != "" { // without a source nothing was paid for it
		reply.RequestHash, reply.Form = j.key, e.prompt.errorForm(j.row, failure.Reason)
	}
	e.answer(j, &reply)
}

// logPanic logs an error if it is a panic, and reports whether it is.
func (e *Executor) logPanic(j *job, err error) bool {
	p, ok := errors.AsType[*pool.PanicError](err)
	if ok {
		e.log.Error("a call panicked: this is a bug in the stage, please report it",
			slog.Uint64("sequence", j.row.Seq), slog.Any("panic", p.Value), slog.String("stack", string(p.Stack)))
	}
	return ok
}

// withCause returns the errors of the row event of a failed row: those of its attempts,
// and why it failed, if that is something else, such as a template that could not be
// rendered. Such an error has attempt 0.
func withCause(attempts []auditlog.AttemptError, failure *llm.Error) []auditlog.AttemptError {
	text := failure.Error()
	if n := len(attempts); n > 0 && attempts[n-1].Error == text {
		return attempts
	}
	return append(slices.Clip(attempts), auditlog.AttemptError{
		Provider: failure.Provider, Class: failure.Class.String(), StatusCode: failure.Status, Error: text,
	})
}

// attemptsOf returns the errors of a row event that attempts have met.
func attemptsOf(errors []auditlog.AttemptError) []auditlog.AttemptError {
	return slices.DeleteFunc(slices.Clone(errors), func(e auditlog.AttemptError) bool { return e.Attempt == 0 })
}

// uncalled is the outcome of a job that ends now without its own call.
func (e *Executor) uncalled(j *job) *result {
	return &result{In: j, Finished: time.Now(), Stats: e.Pool.Stats()}
}

// after adds the outcome of this start to what was spent before.
func (j *job) after(r *result) spent {
	all := j.spent
	all.attempts += r.Attempts
	all.capacityRetries += r.CapacityRetries
	if all.started.IsZero() {
		all.started = r.Started
	}
	return all
}

// event is the part of the row event that the executor knows: how the row went through
// the pool.
func (e *Executor) event(j *job, r *result, source string) auditlog.Row {
	all := j.after(r)
	return auditlog.Row{
		Source: source, Attempts: all.attempts, CapacityRetries: all.capacityRetries, Errors: j.errors, Usage: j.usage.Total(),
		QueuedAt: j.row.Taken, StartedAt: all.started, FinishedAt: r.Finished,
		TemplateHash: e.prompt.templateHash(), VariablesHash: j.vars, CallsHash: j.hash.String(),
		PoolConfig: auditlog.PoolConfig{PoolSize: r.Stats.PoolSize, DispatchDelay: r.Stats.CurrentDelay},
		PoolStats: auditlog.PoolStats{
			CapacityRetries: r.Stats.CapacityRetries, Successes: r.Stats.Successes, MaxConcurrent: r.Stats.MaxConcurrent,
			ThrottleTime: r.Stats.ThrottleTime, PeakDelay: r.Stats.PeakDelay, CurrentDelay: r.Stats.CurrentDelay,
		},
	}
}

// answer answers the job's row, or its element.
func (e *Executor) answer(j *job, reply *consumer.Reply) {
	if j.fan != nil {
		j.fan.answer(j, reply)
		return
	}
	e.reply(j.row, reply)
}

// giveBack hands back the job's row, or its element, with what was spent on it.
func (e *Executor) giveBack(j *job) {
	if j.fan == nil {
		s := j.spent
		j.row.Spent = &s
	}
	e.answer(j, &consumer.Reply{HandedBack: true})
}

// handBack returns a row to its consumer without an outcome.
func (e *Executor) handBack(row *consumer.Row) { e.reply(row, &consumer.Reply{HandedBack: true}) }

// reply answers the row, hands it back, or leaves it to the lane.
func (e *Executor) reply(row *consumer.Row, reply *consumer.Reply) {
	if e.Failed != nil && reply.Failed && !reply.HandedBack {
		e.Failed(row.Seq, causeOf(row, reply))
	}
	e.log.finished(row, reply)
	row.Reply(*reply)
}

// ResultTooLarge implements [consumer.Fitter].
func (e *Executor) ResultTooLarge(in *consumer.Row, size, room int) []byte {
	parsed, err := e.parse(in)
	if err != nil {
		parsed = nil // the body is no row
	}
	return e.prompt.errorBody(parsed, in, row.ResultTooLarge(size, room, e.prompt.moreRoom), nil)
}
