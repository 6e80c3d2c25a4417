package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/llm"
)

// Do sends the prompts of r and waits for all results. Prompts start in their
// order, at most MaxParallel calls being in flight.
//
// A prompt that fails takes nothing from the others: the reply holds an error in
// its place, and the error of Do is nil as long as one prompt was answered. If
// none was it is a [*RateLimitedError], where that was for want of capacity, or
// an [*AllFailedError]; if nothing was sent a [*TooLargeError] or one that
// wraps [ErrRequest]. The answers being too large together is a
// [*ReplyTooLargeError].
//
// No further call starts once one had a fatal error, once a prompt found no
// capacity in all its attempts while no other was answered, or when ctx ends.
// Prompts that were not sent then fail with that error.
func (b *Batch) Do(ctx context.Context, caller Caller, r *Request) (*Reply, error) {
	if err := b.Check(r); err != nil {
		return nil, err
	}
	began := time.Now()
	run := &batchRun{Batch: b, caller: caller, request: r, results: make([]Result, len(r.Prompts))}
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
				run.results[i] = run.result(run.ask(ctx, waits, i))
			}
		})
	}
	workers.Wait()
	reply := &Reply{Results: run.results, TotalTokens: run.tokens, TotalTimeMS: time.Since(began).Milliseconds()}
	return reply, run.verdict(reply)
}

// batchRun is one request on its way.
type batchRun struct {
	*Batch
	caller  Caller
	request *Request
	end     context.CancelCauseFunc // no further call starts
	next    atomic.Int64            // prompt to begin
	results []Result                // each belongs to the worker that has taken its prompt

	mu     sync.Mutex // guards the rest, for a few instructions
	last   time.Time  // when a prompt was answered last
	bytes  int
	tokens *Tokens
	large  *ReplyTooLargeError
}

// ask sends the i-th prompt until it is answered, or fails for good. waits ends
// when the batch does, and with it all that is not a call in flight.
func (run *batchRun) ask(ctx, waits context.Context, i int) (content string, err error) {
	request := run.cfg.Request
	request.Model, request.Prompt, request.Context = run.request.Model, run.request.Prompts[i], ""
	if run.request.Contexts != nil && run.request.Contexts[i] != nil {
		request.Context = *run.request.Contexts[i]
	}
	began := time.Now()
	var fault *llm.Error // the last one
	for failures := 0; ; {
		ended, err := run.turn(waits, run.caller.Provider())
		if err != nil && fault == nil {
			return "", run.notAsked(waits)
		}
		if err != nil {
			return "", fault // the batch has ended, and this is what is known of the prompt
		}
		reply, err := run.caller.Call(ctx, &request)
		ended()
		run.count(reply)
		if err == nil {
			run.answered(len(reply.Text))
			return reply.Text, nil
		}
		failures++
		fault = run.fault(err)
		wait, again := run.wait(failures, fault.RetryAfter)
		if !again || fault.Reason == llm.ReasonRateLimited || fault.Class != llm.Capacity && fault.Class != llm.Transient {
			run.failed(fault, began)
			return "", fault
		}
		sleep(waits, wait)
	}
}

// sleep waits, at most until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fault is the error of a call as an [*llm.Error], which it mostly is.
func (run *batchRun) fault(err error) *llm.Error {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		if e.Class == 0 && e.Reason == "" {
			named := *e
			named.Reason = llm.ReasonCancelled
			return &named
		}
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &llm.Error{Provider: run.caller.Provider(), Reason: llm.ReasonCancelled, Err: err}
	}
	return &llm.Error{Provider: run.caller.Provider(), Class: llm.Permanent, Reason: llm.ReasonInternalError, Err: err}
}

// notAsked is the error of a prompt that was not sent, for the batch has ended.
func (run *batchRun) notAsked(waits context.Context) error {
	cause := context.Cause(waits)
	e := &llm.Error{Reason: llm.ReasonCancelled}
	if why, ok := errors.AsType[*llm.Error](cause); ok {
		named := *why // another prompt's: its facts are not this one's
		named.Facts, named.Status, named.Code, named.Type = nil, 0, "", ""
		e = &named
	}
	e.Provider, e.Err = "", fmt.Errorf("not asked: %w", cause)
	return e
}

// failed ends the batch where a failure speaks for all its prompts.
func (run *batchRun) failed(fault *llm.Error, began time.Time) {
	run.mu.Lock()
	lonely := !run.last.After(began) // nobody was answered since
	run.mu.Unlock()
	if fault.Class == llm.Fatal || fault.Class == 0 || fault.Class == llm.Capacity && lonely {
		run.end(fault)
	}
}

// count adds the tokens of a reply.
func (run *batchRun) count(reply *llm.Reply) {
	if reply == nil || reply.Usage == nil {
		return
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.tokens == nil {
		run.tokens = new(Tokens)
	}
	run.tokens.PromptTokens += reply.Usage.PromptTokens
	run.tokens.CompletionTokens += reply.Usage.CompletionTokens
	run.tokens.TotalTokens += reply.Usage.TotalTokens
}

// answered notes an answer of so many bytes, and ends the batch where they are too
// many.
func (run *batchRun) answered(bytes int) {
	run.mu.Lock()
	run.last = time.Now()
	run.bytes += bytes
	if limit := run.cfg.MaxContentBytes; limit > 0 && run.bytes > limit {
		run.large = &ReplyTooLargeError{Size: run.bytes, Max: limit}
	}
	large := run.large
	run.mu.Unlock()
	if large != nil {
		run.end(large)
	}
}

// result is what became of a prompt.
func (run *batchRun) result(content string, err error) Result {
	if err == nil {
		return Result{Status: Success, Content: content}
	}
	e, _ := errors.AsType[*llm.Error](err) // of ask
	reason := e.Reason
	if e.Class == llm.Capacity {
		reason = llm.ReasonRateLimited
	}
	return Result{Status: Failure, Error: e.Error(), Reason: reason, Err: e}
}

// verdict is the error of a batch that is over.
func (run *batchRun) verdict(reply *Reply) error {
	if run.large != nil {
		return run.large
	}
	if len(reply.Successes()) > 0 {
		return nil
	}
	limited := &RateLimitedError{Provider: run.caller.Provider(), Reply: reply}
	for i := range reply.Results {
		e, _ := errors.AsType[*llm.Error](reply.Results[i].Err)
		if e.Class != llm.Capacity {
			return &AllFailedError{Reply: reply}
		}
		limited.RetryAfter = max(limited.RetryAfter, e.RetryAfter)
		if e.Provider != "" {
			limited.Provider = e.Provider
		}
	}
	return limited
}
