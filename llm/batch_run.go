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
	run := &batchRun{Batch: b, caller: caller, request: r, results: make([]BatchResult, len(r.Prompts))}
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
	reply := &BatchReply{Results: run.results, TotalTokens: run.tokens, TotalTimeMS: time.Since(began).Milliseconds()}
	return reply, run.verdict(reply)
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
		if !again || failure.Reason == ReasonRateLimited || failure.Class != Capacity && failure.Class != Transient {
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
	return &Error{Provider: run.caller.Provider(), Class: Permanent, Reason: ReasonInternalError, Err: err}
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
	run.mu.Lock()
	alone := !run.last.After(began) // no prompt was answered since it began
	run.mu.Unlock()
	if failure.Class == Fatal || failure.Class == 0 || failure.Class == Capacity && alone {
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
	if run.tokens == nil {
		run.tokens = new(BatchTokens)
	}
	run.tokens.PromptTokens += reply.Usage.PromptTokens
	run.tokens.CompletionTokens += reply.Usage.CompletionTokens
	run.tokens.TotalTokens += reply.Usage.TotalTokens
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
