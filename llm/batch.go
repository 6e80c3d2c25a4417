package llm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/retry"
)

// Batch sends many prompts at once and gathers their answers in the order of the prompts.
// It bounds what a request may ask for, keeps to a provider's limit of calls per minute,
// and retries capacity and transient errors a bounded number of times with exponential
// backoff. A [BatchCaller] makes the calls: a [*Client], or something with a pool behind
// it.
//
// Make it with [NewBatch]. It is safe for concurrent use, and all requests that go
// through one Batch share its limits.
type Batch struct {
	cfg   BatchConfig
	limit map[string]*batchLimit // by provider
}

// BatchCaller makes calls for a [Batch]. It is called from several goroutines at once.
// [*Client] is one.
type BatchCaller interface {
	// Provider names the provider that calls go to, as [BatchConfig.RPM] does.
	Provider() string
	// Call makes one attempt at a request and waits for its end. It should return soon
	// after ctx ends. The error should be an [*Error]: its Class and RetryAfter decide
	// what follows. In [Batch.Do] one with [ReasonRateLimited] is the last attempt at its
	// prompt, and one with class 0 or [Fatal] ends the whole batch. An error of any other
	// type counts as permanent. Of a Reply returned with an error only the Usage counts;
	// it may be nil.
	Call(ctx context.Context, r *Request) (*Reply, error)
}

// BatchConfig bounds batches. Its zero value is not valid: start from [DefaultBatch].
type BatchConfig struct {
	// MaxParallel is the maximum of calls in flight of a request that sets none: at least
	// 1 and at most ParallelLimit.
	MaxParallel int
	// ParallelLimit is the maximum of calls in flight that a request may ask for.
	ParallelLimit int
	// MaxPrompts is the maximum of prompts in a request, at least 1.
	MaxPrompts int
	// RPM is the maximum of calls within any minute by provider, over all requests of the
	// Batch, evenly spread: with 60 one may start each second. A call counts until a
	// minute after its end. A call beyond the limit waits. A provider with 0, or without an
	// entry, has no limit.
	RPM map[string]int
	// Retry bounds the attempts at a prompt. Capacity errors count too, and the wait is
	// at least what the server asked for in Retry-After. If that is more than MaxDelay,
	// the prompt is not sent again.
	Retry BatchRetry
	// MaxContentBytes bounds the sum of all answers: beyond it no further call
	// starts and [Batch.Do] returns a [*BatchReplyTooLargeError]. 0 means no bound.
	MaxContentBytes int
	// Request is what all requests have in common. Its Model, Context and Prompt are
	// replaced.
	Request Request
	// Rand draws the jitter, uniform in [0, 1). It must be safe for concurrent use. The
	// default is the generator of math/rand/v2.
	Rand func() float64
}

// DefaultBatch returns 5 calls in flight, at most 20, of up to 1000 prompts; 60 calls per
// minute to anthropic and to openai, 100 to openrouter; 3 attempts, the first wait up to
// 2 s, doubled after each, never more than a minute.
func DefaultBatch() BatchConfig {
	cfg := BatchConfig{
		MaxParallel: 5, ParallelLimit: 20, MaxPrompts: 1000, RPM: make(map[string]int),
		Retry: retry.Default(),
	}
	for _, name := range Providers() {
		if p, _ := LookupProvider(name); p.BatchRPM > 0 {
			cfg.RPM[name] = p.BatchRPM
		}
	}
	return cfg
}

// NewBatch returns a Batch, or an error that lists all that is wrong with cfg.
func NewBatch(cfg BatchConfig) (*Batch, error) {
	var problems []error
	atLeast := func(name string, n, least int) {
		if n < least {
			problems = append(problems, fmt.Errorf("batch: %s is %d, must be at least %d", name, n,
				least))
		}
	}
	atLeast("MaxParallel", cfg.MaxParallel, 1)
	atLeast("ParallelLimit", cfg.ParallelLimit, max(1, cfg.MaxParallel))
	atLeast("MaxPrompts", cfg.MaxPrompts, 1)
	atLeast("MaxContentBytes", cfg.MaxContentBytes, 0)
	for _, err := range cfg.Retry.Problems() {
		problems = append(problems, fmt.Errorf("batch: Retry.%w", err))
	}
	b := &Batch{cfg: cfg, limit: make(map[string]*batchLimit)}
	for provider, rpm := range cfg.RPM {
		atLeast("RPM of "+provider, rpm, 0)
		if rpm > 0 {
			b.limit[provider] = newBatchLimit(rpm)
		}
	}
	if b.cfg.Rand == nil {
		b.cfg.Rand = rand.Float64
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return b, nil
}

// BatchRetry bounds the attempts at one prompt and spreads them over time. There are at
// most MaxAttempts. After the n-th, the wait is between 0 and BaseDelay ×
// BackoffFactor^(n-1), at most MaxDelay: with 1 s and a factor of 2 it is at most 1 s, 2
// s, 4 s and so on.
type BatchRetry = retry.Config

// BatchRequest is a batch of prompts. [Batch.Do] only reads it.
type BatchRequest struct {
	// Prompts are sent one by one, at least one.
	Prompts []string `json:"prompts"`
	// Contexts are sent as user messages, each before the prompt of the same place. A
	// prompt whose context is nil or empty has none. Without Contexts no prompt has one.
	Contexts []*string `json:"contexts,omitempty"`
	// MaxParallel is the maximum of calls in flight, clamped to between 1 and
	// [BatchConfig.ParallelLimit]. The default is [BatchConfig.MaxParallel].
	MaxParallel int `json:"max_parallel,omitempty"`
	// Model is the model to call. The default is the caller's own.
	Model string `json:"model,omitempty"`
}

// Check validates a request: it returns a [*BatchTooLargeError], an error that wraps
// [ErrBatchRequest], or nil.
func (b *Batch) Check(r *BatchRequest) error {
	switch n := len(r.Prompts); {
	case n == 0:
		return fmt.Errorf("%w: there are no prompts", ErrBatchRequest)
	case n > b.cfg.MaxPrompts:
		return &BatchTooLargeError{Size: n, Max: b.cfg.MaxPrompts}
	case len(r.Contexts) > 0 && len(r.Contexts) != n:
		return fmt.Errorf("%w: there are %d prompts and %d contexts: give one context for each, "+
			"null for none, or leave all out", ErrBatchRequest, n, len(r.Contexts))
	}
	return nil
}

// parallel is how many calls of the request may be in flight.
func (b *Batch) parallel(r *BatchRequest) int {
	n := cmp.Or(r.MaxParallel, b.cfg.MaxParallel)
	return min(max(1, n), b.cfg.ParallelLimit, len(r.Prompts))
}

// TryTurn counts a call to a provider if [BatchConfig.RPM] allows one now. [Batch.Do]
// waits for the turn of each call to the provider of its [BatchCaller] by itself: this is
// for a caller that sends a call to another one. ended must be called at the end of the
// call; it is nil unless ok.
func (b *Batch) TryTurn(provider string) (ended func(), ok bool) {
	limit := b.limit[provider]
	if limit == nil {
		return func() {}, true
	}
	select {
	case limit.minute <- struct{}{}:
	default:
		return nil, false
	}
	if !limit.tryStart(time.Now()) {
		<-limit.minute
		return nil, false
	}
	return limit.ended, true
}

// turn waits for the turn of a call by the provider's limit, and returns what must
// be called at its end, or the cause of ctx.
func (b *Batch) turn(ctx context.Context, provider string) (ended func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	limit := b.limit[provider]
	if limit == nil {
		return func() {}, nil
	}
	select {
	case limit.minute <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	sleepFor(ctx, limit.start(time.Now()))
	if ctx.Err() != nil {
		<-limit.minute
		return nil, context.Cause(ctx)
	}
	return limit.ended, nil
}

// batchLimit keeps the calls to one provider within its limit a minute, by two rules:
// calls start at an even pace, and each counts until a minute after its end. The first
// rule alone would let out a burst: after their turn calls may wait for a slot of their
// caller, and get it all at once. The second rule alone would let a whole minute's calls
// start at once.
type batchLimit struct {
	minute chan struct{} // a token for each call that counts; they take no memory
	apart  time.Duration // between the starts of two calls

	mu   sync.Mutex // guards the rest, for a few instructions
	next time.Time  // when the next call may start
}

func newBatchLimit(rpm int) *batchLimit {
	return &batchLimit{minute: make(chan struct{}, rpm), apart: time.Minute / time.Duration(rpm)}
}

// start takes the next place in the even spread, and returns how long it is until then.
// The place of a call that is given up meanwhile stays empty.
func (l *batchLimit) start(now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next.Before(now) {
		l.next = now
	}
	wait = l.next.Sub(now)
	l.next = l.next.Add(l.apart)
	return wait
}

// tryStart is start for a call that can't wait. It may be one place early, since calls that
// come at the very pace of the limit come a moment early as often as late.
func (l *batchLimit) tryStart(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next.Sub(now) > l.apart {
		return false
	}
	if l.next.Before(now) {
		l.next = now
	}
	l.next = l.next.Add(l.apart)
	return true
}

// ended frees the place of a call within the minute, a minute from now.
func (l *batchLimit) ended() { time.AfterFunc(time.Minute, func() { <-l.minute }) }

// wait returns the wait after the n-th failure of a prompt; ok is false if it must not be
// sent again.
func (b *Batch) wait(n int, retryAfter time.Duration) (d time.Duration, ok bool) {
	r := &b.cfg.Retry
	if n >= r.MaxAttempts || retryAfter > r.MaxDelay {
		return 0, false
	}
	return max(r.Wait(n, b.cfg.Rand()), retryAfter), true
}

// The values of [BatchResult.Status].
const (
	BatchSuccess = "success"
	BatchError   = "error"
)

// BatchReply is the outcome of a batch.
type BatchReply struct {
	// Results are in the order of the prompts, one for each.
	Results []BatchResult `json:"results"`
	// TotalTokens sums the reported tokens, of failed attempts too. It is nil if none were
	// reported.
	TotalTokens *BatchTokens `json:"total_tokens"`
	// TotalTimeMS is the time from the start to the last result, in milliseconds.
	TotalTimeMS int64 `json:"total_time_ms"`
}

// BatchTokens counts the tokens of a batch.
type BatchTokens struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// Plus returns the sum of both. Nil counts nothing, and the sum of two is nil.
func (t *BatchTokens) Plus(other *BatchTokens) *BatchTokens {
	switch {
	case t == nil:
		return other
	case other == nil:
		return t
	}
	return &BatchTokens{
		PromptTokens:     t.PromptTokens + other.PromptTokens,
		CompletionTokens: t.CompletionTokens + other.CompletionTokens,
		TotalTokens:      t.TotalTokens + other.TotalTokens,
	}
}

// BatchResult is the outcome of one prompt.
type BatchResult struct {
	// Status is [BatchSuccess] or [BatchError].
	Status string `json:"status"`
	// Content is the answer. It is not empty if Status is [BatchSuccess].
	Content string `json:"content,omitempty"`
	// Error is the error as text, Reason its machine-readable cause.
	Error  string `json:"error,omitempty"`
	Reason Reason `json:"reason,omitempty"`
	// Err is the error whose text Error is. It is nil on success, and in a result that was
	// read from JSON.
	Err error `json:"-"`
}

// BatchFault is one failed prompt in an error report.
type BatchFault struct {
	// Index is the prompt's place in the request, from 0.
	Index int `json:"index"`
	// Error and Reason are copied from its [BatchResult].
	Error  string `json:"error"`
	Reason Reason `json:"reason"`
}

// AllSucceeded reports whether every prompt was answered.
func (r *BatchReply) AllSucceeded() bool { return r.ErrorCount() == 0 }

// Successes returns the answers alone, in the order of their prompts.
func (r *BatchReply) Successes() []string {
	var contents []string
	for i := range r.Results {
		if r.Results[i].Status == BatchSuccess {
			contents = append(contents, r.Results[i].Content)
		}
	}
	return contents
}

// ErrorCount is the number of prompts that were not answered.
func (r *BatchReply) ErrorCount() int { return len(r.Results) - len(r.Successes()) }

// ErrorReport lists the prompts that were not answered, in their order, and why.
func (r *BatchReply) ErrorReport() []BatchFault {
	var report []BatchFault
	for i := range r.Results {
		if v := &r.Results[i]; v.Status != BatchSuccess {
			report = append(report, BatchFault{Index: i, Error: v.Error, Reason: v.Reason})
		}
	}
	return report
}

// ErrBatchRequest is wrapped by the error of an invalid request: one without prompts, or
// with another number of contexts than of prompts. Match it with [errors.Is].
var ErrBatchRequest = errors.New("not a batch of prompts")

// AllFailedError is the error of a batch without a single answer.
type AllFailedError struct {
	// Reply holds the results; its ErrorReport lists the error of each.
	Reply *BatchReply
}

// Total is the number of prompts.
func (e *AllFailedError) Total() int { return len(e.Reply.Results) }

// Error states the number of prompts and the first error.
func (e *AllFailedError) Error() string {
	return fmt.Sprintf("all %d prompts failed, the first with: %s", e.Total(),
		e.Reply.Results[0].Error)
}

// Unwrap returns the errors of the prompts, in their order.
func (e *AllFailedError) Unwrap() []error {
	errs := make([]error, 0, len(e.Reply.Results))
	for i := range e.Reply.Results {
		if err := e.Reply.Results[i].Err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// RateLimitedError is the error of a batch without a single answer, if each prompt failed
// for want of capacity.
type RateLimitedError struct {
	// Provider is the provider without capacity.
	Provider string
	// RetryAfter is the longest wait that the provider asked for, or 0.
	RetryAfter time.Duration
	// Reply holds the results.
	Reply *BatchReply
}

// Error names the provider and, if it asked for one, the wait.
func (e *RateLimitedError) Error() string {
	text := fmt.Sprintf("%s has no capacity for the batch", e.Provider)
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", retry after %v", e.RetryAfter)
	}
	return text
}

// BatchTooLargeError is the error of a request with too many prompts.
type BatchTooLargeError struct {
	// Size is the number of prompts, Max the maximum.
	Size, Max int
}

// Error states both numbers.
func (e *BatchTooLargeError) Error() string {
	return fmt.Sprintf("batch has %d prompts, at most %d are allowed: send several batches", e.Size,
		e.Max)
}

// BatchReplyTooLargeError is the error of a batch whose answers are too large together.
type BatchReplyTooLargeError struct {
	// Size is the number of bytes when the batch ended, Max the maximum.
	Size, Max int
}

// Error states both numbers.
func (e *BatchReplyTooLargeError) Error() string {
	return fmt.Sprintf("answers take %d bytes, at most %d are allowed: send fewer prompts at a "+
		"time", e.Size, e.Max)
}
