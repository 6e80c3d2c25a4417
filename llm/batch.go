package llm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Batch asks many prompts at once and gathers their answers in the order of the
// prompts. It bounds what a request may ask for, spreads calls over the minute
// where a provider's limit says so, and asks again, with exponential backoff and
// a bounded number of times, what met no capacity or bad luck. What makes a call
// is given to it: a [*Client], or something with a pool behind it.
//
// Make it with [NewBatch]. It is safe for concurrent use, and all batches that
// are done by one Batch share its limits.
type Batch struct {
	cfg   BatchConfig
	limit map[string]chan struct{} // by provider: a token for each call of the last minute
}

// BatchCaller makes calls for a [Batch]. It is asked from several goroutines at
// once. [*Client] is one.
type BatchCaller interface {
	// Provider is the one that calls go to, as [BatchConfig.RPM] names it.
	Provider() string
	// Call makes one attempt at a request and waits for its end. It should
	// return soon after ctx ends. The error should be an [*Error]: its Class and
	// RetryAfter decide what follows. One with [ReasonRateLimited], or with class
	// 0 or [Fatal], ends the whole batch; any other type counts as permanent. The
	// Reply beside an error counts for its Usage alone and may be nil.
	Call(ctx context.Context, r *Request) (*Reply, error)
}

// Call makes one attempt at a request: [Client.Prepare], then [Client.Do]. It
// implements [BatchCaller].
func (c *Client) Call(ctx context.Context, r *Request) (*Reply, error) {
	p, err := c.Prepare(r)
	if err != nil {
		return nil, err
	}
	x, err := c.Do(ctx, p)
	return x.Reply, err
}

// BatchConfig bounds batches. Its zero value is not valid: start from
// [DefaultBatch].
type BatchConfig struct {
	// MaxParallel is the most calls in flight of a request that does not say, at
	// least 1 and at most ParallelLimit.
	MaxParallel int
	// ParallelLimit is the most calls in flight that a request may ask for.
	ParallelLimit int
	// MaxPrompts is the most prompts of a request, at least 1.
	MaxPrompts int
	// RPM is the most calls within any minute by provider, over all batches of
	// the Batch. A call counts until a minute after its end. A call beyond the
	// limit waits. 0, or no entry: no limit.
	RPM map[string]int
	// Retry bounds the attempts at a prompt.
	Retry BatchRetry
	// MaxContentBytes bounds the sum of all answers: beyond it no further call
	// starts and Do returns a [*BatchReplyTooLargeError]. 0: no bound.
	MaxContentBytes int
	// Request is what all requests have in common. Its Model, Context and Prompt
	// are replaced.
	Request Request
	// Rand draws the jitter, uniform in [0, 1). It must be safe for concurrent
	// use. Nil: math/rand/v2.
	Rand func() float64
}

// BatchRetry bounds the attempts at one prompt: after the n-th failure the prompt
// waits a time uniform in [0, BaseDelay × BackoffFactor^(n-1)], that upper end
// being at most MaxDelay, and at least what the server told in Retry-After. A
// server that asks for more than MaxDelay is not asked again.
type BatchRetry struct {
	// MaxAttempts is the most attempts, the first included, at least 1. Capacity
	// errors count.
	MaxAttempts int
	// BaseDelay is the longest wait after the first failure, at least 0.
	BaseDelay time.Duration
	// BackoffFactor is by how much that grows with each failure, at least 1.
	BackoffFactor float64
	// MaxDelay is the longest wait ever, at least 0.
	MaxDelay time.Duration
}

// DefaultBatch returns 5 calls in flight, 20 at most, of up to 1000 prompts; 60
// calls a minute to anthropic and to openai, 100 to openrouter; 3 attempts, the
// first wait up to 2 s, doubled after each, never more than a minute.
func DefaultBatch() BatchConfig {
	return BatchConfig{
		MaxParallel: 5, ParallelLimit: 20, MaxPrompts: 1000,
		RPM:   map[string]int{Anthropic: 60, OpenAI: 60, OpenRouter: 100},
		Retry: BatchRetry{MaxAttempts: 3, BaseDelay: 2 * time.Second, BackoffFactor: 2, MaxDelay: time.Minute},
	}
}

// NewBatch returns a Batch, or every fault of cfg.
func NewBatch(cfg BatchConfig) (*Batch, error) {
	var faults []error
	atLeast := func(name string, n, least int) {
		if n < least {
			faults = append(faults, fmt.Errorf("batch: %s is %d, must be at least %d", name, n, least))
		}
	}
	atLeast("MaxParallel", cfg.MaxParallel, 1)
	atLeast("ParallelLimit", cfg.ParallelLimit, max(1, cfg.MaxParallel))
	atLeast("MaxPrompts", cfg.MaxPrompts, 1)
	atLeast("MaxContentBytes", cfg.MaxContentBytes, 0)
	atLeast("Retry.MaxAttempts", cfg.Retry.MaxAttempts, 1)
	if cfg.Retry.BaseDelay < 0 || cfg.Retry.MaxDelay < 0 {
		faults = append(faults, fmt.Errorf("batch: Retry waits %v to %v, must not be negative", cfg.Retry.BaseDelay, cfg.Retry.MaxDelay))
	}
	if f := cfg.Retry.BackoffFactor; !(f >= 1) || math.IsInf(f, 0) { // so that NaN is a fault too
		faults = append(faults, fmt.Errorf("batch: Retry.BackoffFactor is %v, must be at least 1 and finite", f))
	}
	b := &Batch{cfg: cfg, limit: make(map[string]chan struct{})}
	for provider, rpm := range cfg.RPM {
		atLeast("RPM of "+provider, rpm, 0)
		if rpm > 0 {
			b.limit[provider] = make(chan struct{}, rpm) // tokens without a size take no memory
		}
	}
	if b.cfg.Rand == nil {
		b.cfg.Rand = rand.Float64
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return b, nil
}

// BatchRequest is a batch of prompts. Do only reads it.
type BatchRequest struct {
	// Prompts are asked one by one, at least one.
	Prompts []string `json:"prompts"`
	// Contexts are sent as a user message before the prompt of the same place.
	// Nil: none; a nil or empty element: none for that prompt.
	Contexts []*string `json:"contexts,omitempty"`
	// MaxParallel is the most calls in flight, brought between 1 and the limit.
	// 0: the default.
	MaxParallel int `json:"max_parallel,omitempty"`
	// Model is asked instead of the caller's own. Empty: that one.
	Model string `json:"model,omitempty"`
}

// Check says whether a request may be done: it returns a [*BatchTooLargeError], an
// error that wraps [ErrBatchRequest], or nil.
func (b *Batch) Check(r *BatchRequest) error {
	switch n := len(r.Prompts); {
	case n == 0:
		return fmt.Errorf("%w: there are no prompts", ErrBatchRequest)
	case n > b.cfg.MaxPrompts:
		return &BatchTooLargeError{Size: n, Max: b.cfg.MaxPrompts}
	case r.Contexts != nil && len(r.Contexts) != n:
		return fmt.Errorf("%w: there are %d prompts and %d contexts: give one context for each, null for none, or leave all out", ErrBatchRequest, n, len(r.Contexts))
	}
	return nil
}

// parallel is how many calls of the request may be in flight.
func (b *Batch) parallel(r *BatchRequest) int {
	n := cmp.Or(r.MaxParallel, b.cfg.MaxParallel)
	return min(max(1, n), b.cfg.ParallelLimit, len(r.Prompts))
}

// TryTurn counts a call to a provider if [BatchConfig.RPM] allows one now. Do
// waits for the turn of each of its calls by itself: this is for a caller that
// learns only then that another provider is to be asked. ended must be called at
// the end of the call; it is nil unless ok.
func (b *Batch) TryTurn(provider string) (ended func(), ok bool) {
	limit := b.limit[provider]
	if limit == nil {
		return func() {}, true
	}
	select {
	case limit <- struct{}{}:
		return turnEnded(limit), true
	default:
		return nil, false
	}
}

// turn waits for the turn of a call by the provider's limit, and returns what to
// do at its end, or the cause of ctx.
//
// The minute counts from the end of the call, and not from its turn: the call may
// still wait for its caller's slot, and many that did would go out in a bunch.
func (b *Batch) turn(ctx context.Context, provider string) (ended func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if ended, ok := b.TryTurn(provider); ok {
		return ended, nil
	}
	limit := b.limit[provider]
	select {
	case limit <- struct{}{}:
		return turnEnded(limit), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func turnEnded(limit chan struct{}) func() {
	return func() { time.AfterFunc(time.Minute, func() { <-limit }) }
}

// wait returns the wait after the n-th failure of a prompt; ok is false when it
// should not be asked again.
func (b *Batch) wait(n int, retryAfter time.Duration) (d time.Duration, ok bool) {
	r := &b.cfg.Retry
	if n >= r.MaxAttempts || retryAfter > r.MaxDelay {
		return 0, false
	}
	if r.BaseDelay == 0 {
		return retryAfter, true // and not 0 times a power that may be infinite
	}
	longest := min(float64(r.BaseDelay)*math.Pow(r.BackoffFactor, float64(n-1)), float64(r.MaxDelay))
	return max(time.Duration(b.cfg.Rand()*longest), retryAfter), true
}
