package llm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Do sends the prompts of r and waits for all results. Prompts start in their
// order, with at most MaxParallel calls in flight.
//
// A prompt that fails does not affect the others: the reply holds an error in its place,
// and Do returns nil as long as one prompt was answered. If none was, it returns a
// [*RateLimitedError] if all failed for want of capacity, and otherwise an
// [*AllFailedError]. If [Batch.Check] rejects the request, Do sends nothing and returns
// that error. If the answers are too large together, it returns a
// [*BatchReplyTooLargeError].
//
// No further call starts after a fatal error, after a prompt found no capacity in any of
// its attempts while no other was answered, or when ctx ends. Prompts that were not sent
// then fail with that error.
func (b *Batch) Do(ctx context.Context, caller BatchCaller, r *BatchRequest) (*BatchReply, error) {
	if err := b.Check(r); err != nil {
		return nil, err
	}
	began := time.Now()
	run := &batchRun{
		Batch: b, caller: caller, request: r, results: make([]BatchResult, len(r.Prompts)),
	}
	waits, end := context.WithCancelCause(ctx)
	defer end(nil)
	run.end = end
	var workers sync.WaitGroup
	for range b.parallel(r) {
		workers.Go(func() {
			for {
				i := int(run.next.Add(1)) - 1
				if i >= len(r.Prompts) {
					return
				}
				run.results[i] = batchResult(run.send(ctx, waits, i))
			}
		})
	}
	workers.Wait()
	reply := &BatchReply{
		Results: run.results, TotalTokens: run.tokens,
		TotalTimeMS: time.Since(began).Milliseconds(),
	}
	return reply, run.verdict(reply)
}

// BatchKeeper keeps the results of a batch that [Batch.Resume] works on, so that it can go
// on after an interruption. Its methods are called from several goroutines at once.
type BatchKeeper interface {
	// Kept reports whether the i-th prompt has its result already. It is asked once,
	// before the prompt's first attempt.
	Kept(i int) bool
	// Keep stores the result of the i-th prompt, with the tokens that all attempts at it
	// reported, nil if none did, and returns when it is stored. No further prompt is sent
	// meanwhile in its place. An error ends the batch.
	Keep(i int, r BatchResult, tokens *BatchTokens) error
	// Waits reports why a prompt is not answered yet, and is sent again later.
	Waits(err *Error)
}

// retryAfterMost bounds the wait that a server may ask of a prompt of a resumed batch.
const retryAfterMost = time.Hour

// aloneMax is how long a prompt of a resumed batch is sent again at transient errors when
// no other prompt is answered meanwhile: the server may be out.
const aloneMax = 15 * time.Minute

// Resume sends the prompts of r that have no result yet, and has keeper store each result.
// It is for batches that nobody waits for: where [Batch.Do] fails a prompt, it waits. A
// prompt without capacity, or whose call was not made, is sent again until ctx ends. One
// that meets transient errors fails after its attempts, but only once another prompt was
// answered since it began, or after 15 minutes.
//
// It returns nil once each prompt has a result. The error is that of keeper, the cause of
// ctx, or a fatal [*Error], which fails no prompt: call it again when the key, the account
// or the settings may have changed. Calls in flight are always waited for, and their
// results kept. MaxContentBytes does not apply. [Batch.Check] must accept r.
func (b *Batch) Resume(
	ctx context.Context, caller BatchCaller, r *BatchRequest, keeper BatchKeeper,
) error {
	waits, end := context.WithCancelCause(ctx)
	defer end(nil)
	run := &batchRun{Batch: b, caller: caller, request: r, end: end}
	var workers sync.WaitGroup
	for range b.parallel(r) {
		workers.Go(func() {
			for waits.Err() == nil {
				i := int(run.next.Add(1)) - 1
				if i >= len(r.Prompts) {
					return
				}
				if keeper.Kept(i) {
					continue
				}
				if err := run.persist(ctx, waits, i, keeper); err != nil {
					end(err) // the first error counts
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(waits)
}

// persist sends the i-th prompt until it has a result that is kept. The error ends the
// batch.
func (run *batchRun) persist(ctx, waits context.Context, i int, keeper BatchKeeper) error {
	request, own := run.prompt(i), &batchRun{} // own counts the tokens of this prompt alone
	began, failures := time.Now(), 0
	for n := 1; ; n++ {
		ended, err := run.turn(waits, run.caller.Provider())
		if err != nil {
			return err
		}
		reply, err := run.caller.Call(ctx, &request)
		ended()
		own.count(reply)
		if err == nil {
			run.answered(0)
			return keeper.Keep(i, batchResult(reply.Text, nil), own.tokens)
		}
		failure := run.asError(err)
		wait := max(run.cfg.Retry.Wait(n, run.cfg.Rand()), min(failure.RetryAfter, retryAfterMost))
		switch failure.Class {
		case Fatal:
			return failure
		case Transient:
			failures++
			if failures >= run.cfg.Retry.MaxAttempts &&
				(!run.alone(began) || time.Since(began) >= aloneMax) {
				return keeper.Keep(i, batchResult("", failure), own.tokens)
			}
		case Permanent:
			return keeper.Keep(i, batchResult("", failure), own.tokens)
		case Capacity: // until there is some
		default: // the call was not made, or cut off by a stop
		}
		if waits.Err() != nil {
			return context.Cause(waits)
		}
		keeper.Waits(failure)
		sleepFor(waits, wait)
	}
}

// alone reports whether no prompt was answered since an instant.
func (run *batchRun) alone(since time.Time) bool {
	run.mu.Lock()
	defer run.mu.Unlock()
	return !run.last.After(since)
}

// batchRun is one request in progress.
type batchRun struct {
	*Batch
	caller  BatchCaller
	request *BatchRequest
	end     context.CancelCauseFunc // no further call starts
	next    atomic.Int64            // prompt to begin
	results []BatchResult           // each belongs to the worker that has taken its prompt

	mu     sync.Mutex // guards the rest, for a few instructions
	last   time.Time  // when a prompt was answered last
	bytes  int
	tokens *BatchTokens
	large  *BatchReplyTooLargeError
}

// send sends the i-th prompt until it is answered or fails for good. waits ends when
// the batch does, and with it all waiting but that for a call in flight.
func (run *batchRun) send(ctx, waits context.Context, i int) (content string, err error) {
	request := run.prompt(i)
	began := time.Now()
	var failure *Error // the last one
	for failures := 0; ; {
		ended, err := run.turn(waits, run.caller.Provider())
		if err != nil && failure == nil {
			return "", batchNotSent(waits)
		}
		if err != nil {
			return "", failure // the batch has ended, and this is the prompt's last error
		}
		reply, err := run.caller.Call(ctx, &request)
		ended()
		run.count(reply)
		if err == nil {
			run.answered(len(reply.Text))
			return reply.Text, nil
		}
		failures++
		failure = run.asError(err)
		wait, again := run.wait(failures, failure.RetryAfter)
		if !again || failure.Reason == ReasonRateLimited || failure.Class != Capacity &&
			failure.Class != Transient {
			run.failed(failure, began)
			return "", failure
		}
		sleepFor(waits, wait)
	}
}

// prompt is the request of the i-th prompt.
func (run *batchRun) prompt(i int) Request {
	request := run.cfg.Request
	request.Model, request.Prompt, request.Context = run.request.Model, run.request.Prompts[i], ""
	if len(run.request.Contexts) > 0 && run.request.Contexts[i] != nil {
		request.Context = *run.request.Contexts[i]
	}
	return request
}

// sleepFor waits for d, at most until ctx ends.
func sleepFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// asError returns the error of a call as an [*Error], which it usually is.
func (run *batchRun) asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Class == 0 && e.Reason == "" {
			named := *e
			named.Reason = ReasonCancelled
			return &named
		}
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &Error{Provider: run.caller.Provider(), Reason: ReasonCancelled, Err: err}
	}
	return &Error{
		Provider: run.caller.Provider(), Class: Permanent, Reason: ReasonInternalError, Err: err,
	}
}

// batchNotSent is the error of a prompt that was not sent because the batch has ended.
func batchNotSent(waits context.Context) error {
	cause := context.Cause(waits)
	e := &Error{Reason: ReasonCancelled}
	if why, ok := errors.AsType[*Error](cause); ok {
		named := *why // another prompt's: its facts are not this one's
		named.Facts, named.Status, named.Code, named.Type = nil, 0, "", ""
		e = &named
	}
	e.Provider, e.Err = "", fmt.Errorf("not sent: %w", cause)
	return e
}

// failed ends the batch if a failure holds for all its prompts.
func (run *batchRun) failed(failure *Error, began time.Time) {
	if failure.Class == Fatal || failure.Class == 0 || failure.Class == Capacity &&
		run.alone(began) {
		run.end(failure)
	}
}

// count adds the tokens of a reply.
func (run *batchRun) count(reply *Reply) {
	if reply == nil || reply.Usage == nil {
		return
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	u := reply.Usage
	run.tokens = run.tokens.Plus(&BatchTokens{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
		TotalTokens: u.TotalTokens,
	})
}

// answered counts an answer of so many bytes, and ends the batch if they are too many
// together.
func (run *batchRun) answered(bytes int) {
	run.mu.Lock()
	run.last = time.Now()
	run.bytes += bytes
	if limit := run.cfg.MaxContentBytes; limit > 0 && run.bytes > limit {
		run.large = &BatchReplyTooLargeError{Size: run.bytes, Max: limit}
	}
	large := run.large
	run.mu.Unlock()
	if large != nil {
		run.end(large)
	}
}

// batchResult is the outcome of a prompt.
func batchResult(content string, err error) BatchResult {
	if err == nil {
		return BatchResult{Status: BatchSuccess, Content: content}
	}
	e, _ := errors.AsType[*Error](err) // of send
	reason := e.Reason
	if e.Class == Capacity {
		reason = ReasonRateLimited
	}
	return BatchResult{Status: BatchError, Error: e.Error(), Reason: reason, Err: e}
}

// verdict is the error of a batch that has ended.
func (run *batchRun) verdict(reply *BatchReply) error {
	if run.large != nil {
		return run.large
	}
	if len(reply.Successes()) > 0 {
		return nil
	}
	limited := &RateLimitedError{Provider: run.caller.Provider(), Reply: reply}
	for i := range reply.Results {
		e, _ := errors.AsType[*Error](reply.Results[i].Err)
		if e.Class != Capacity {
			return &AllFailedError{Reply: reply}
		}
		limited.RetryAfter = max(limited.RetryAfter, e.RetryAfter)
		if e.Provider != "" {
			limited.Provider = e.Provider
		}
	}
	return limited
}
