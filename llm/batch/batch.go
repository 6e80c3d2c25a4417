// Package batch sends a language model many prompts at once and gathers the answers in the order of the prompts.
//
//	b, err := batch.New(batch.Default())
//	reply, err := b.Do(ctx, client, &batch.Request{Prompts: []string{"Say hello.", "Say goodbye."}})
//	for _, content := range reply.Successes() { /* … */ }
package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Batch sends many prompts at once and gathers their answers in the order of the prompts. It bounds what a request may
// ask for, keeps to a provider's limit of calls per minute, and retries capacity and transient errors a bounded number
// of times with exponential backoff. A [Caller] makes the calls: a [*llm.Client], or something with a pool behind it.
//
// Make it with [New]. It is safe for concurrent use, and all requests that go through one Batch share its limits.
type Batch struct {
	cfg   Config
	limit map[string]chan struct{} // by provider: a token for each call of the last minute
}

// Caller makes calls for a [Batch]. It is called from several goroutines at once. [*llm.Client] is one.
type Caller interface {
	// Provider names the provider that calls go to, as [Config.RPM] does.
	Provider() string
	// Call makes one attempt at a request and waits for its end. It should return soon after ctx ends. The error should be
	// an [*llm.Error]: its Class and RetryAfter decide what follows. One with [llm.ReasonRateLimited], or with class 0 or
	// [llm.Fatal], ends the whole batch; an error of any other type counts as permanent. Of a Reply returned with an error
	// only the Usage counts; it may be nil.
	Call(ctx context.Context, r *llm.Request) (*llm.Reply, error)
}

// Config bounds batches. Its zero value is not valid: start from [Default].
type Config struct {
	// MaxParallel is the maximum of calls in flight of a request that sets none: at least 1 and at most ParallelLimit.
	MaxParallel int
	// ParallelLimit is the maximum of calls in flight that a request may ask for.
	ParallelLimit int
	// MaxPrompts is the maximum of prompts in a request, at least 1.
	MaxPrompts int
	// RPM is the maximum of calls within any minute by provider, over all requests of the Batch. A call counts until a
	// minute after its end. A call beyond the limit waits. 0, or no entry: no limit.
	RPM map[string]int
	// Retry bounds the attempts at a prompt. Capacity errors count too, and the wait is at least what the server asked for
	// in Retry-After. A server that asks for more than MaxDelay is not called again.
	Retry pool.RetryConfig
	// MaxContentBytes bounds the sum of all answers: beyond it no further call
	// starts and [Batch.Do] returns a [*ReplyTooLargeError]. 0: no bound.
	MaxContentBytes int
	// Request is what all requests have in common. Its Model, Context and Prompt are replaced.
	Request llm.Request
	// Rand draws the jitter, uniform in [0, 1). It must be safe for concurrent use. Nil: math/rand/v2.
	Rand func() float64
}

// Default returns 5 calls in flight, at most 20, of up to 1000 prompts; 60 calls per minute to anthropic and to openai,
// 100 to openrouter; 3 attempts, the first wait up to 2 s, doubled after each, never more than a minute.
func Default() Config {
	cfg := Config{MaxParallel: 5, ParallelLimit: 20, MaxPrompts: 1000, RPM: make(map[string]int), Retry: pool.DefaultRetry()}
	for _, name := range llm.Providers() {
		if p, _ := llm.LookupProvider(name); p.BatchRPM > 0 {
			cfg.RPM[name] = p.BatchRPM
		}
	}
	return cfg
}

// New returns a Batch, or an error that lists all that is wrong with cfg.
func New(cfg Config) (*Batch, error) {
	var problems []error
	atLeast := func(name string, n, least int) {
		if n < least {
			problems = append(problems, fmt.Errorf("batch: %s is %d, must be at least %d", name, n, least))
		}
	}
	atLeast("MaxParallel", cfg.MaxParallel, 1)
	atLeast("ParallelLimit", cfg.ParallelLimit, max(1, cfg.MaxParallel))
	atLeast("MaxPrompts", cfg.MaxPrompts, 1)
	atLeast("MaxContentBytes", cfg.MaxContentBytes, 0)
	for _, err := range cfg.Retry.Problems() {
		problems = append(problems, fmt.Errorf("batch: Retry.%w", err))
	}
	b := &Batch{cfg: cfg, limit: make(map[string]chan struct{})}
	for provider, rpm := range cfg.RPM {
		atLeast("RPM of "+provider, rpm, 0)
		if rpm > 0 {
			b.limit[provider] = make(chan struct{}, rpm) // its tokens have no size and take no memory
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

// Request is a batch of prompts. [Batch.Do] only reads it.
type Request struct {
	// Prompts are sent one by one, at least one.
	Prompts []string `json:"prompts"`
	// Contexts are sent as a user message before the prompt of the same place.
	// Nil: none; a nil or empty element: none for that prompt.
	Contexts []*string `json:"contexts,omitempty"`
	// MaxParallel is the maximum of calls in flight, clamped to between 1 and
	// [Config.ParallelLimit]. 0: [Config.MaxParallel].
	MaxParallel int `json:"max_parallel,omitempty"`
	// Model is used instead of the caller's own; empty: the caller's.
	Model string `json:"model,omitempty"`
}

// Check validates a request: it returns a [*TooLargeError], an error that wraps [ErrRequest], or nil.
func (b *Batch) Check(r *Request) error {
	switch n := len(r.Prompts); {
	case n == 0:
		return fmt.Errorf("%w: there are no prompts", ErrRequest)
	case n > b.cfg.MaxPrompts:
		return &TooLargeError{Size: n, Max: b.cfg.MaxPrompts}
	case r.Contexts != nil && len(r.Contexts) != n:
		return fmt.Errorf("%w: there are %d prompts and %d contexts: give one context for each, null for none, or leave all out", ErrRequest, n, len(r.Contexts))
	}
	return nil
}

// parallel is how many calls of the request may be in flight.
func (b *Batch) parallel(r *Request) int {
	n := cmp.Or(r.MaxParallel, b.cfg.MaxParallel)
	return min(max(1, n), b.cfg.ParallelLimit, len(r.Prompts))
}

// TryTurn counts a call to a provider if [Config.RPM] allows one now. [Batch.Do] waits for the turn of each call to the
// provider of its [Caller] by itself: this is for a Caller that sends a call to another one. ended must be called at
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

// turn waits for the turn of a call by the provider's limit, and returns what must
// be called at its end, or the cause of ctx.
//
// The minute counts from the end of the call, and not from its turn: the call may
// still wait for a slot of its caller, and many that did would go out in a burst.
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

// turnEnded returns what frees a turn, a minute after it is called.
func turnEnded(limit chan struct{}) func() {
	return func() { time.AfterFunc(time.Minute, func() { <-limit }) }
}

// wait returns the wait after the n-th failure of a prompt; ok is false if it must not be sent again.
func (b *Batch) wait(n int, retryAfter time.Duration) (d time.Duration, ok bool) {
	r := &b.cfg.Retry
	if n >= r.MaxAttempts || retryAfter > r.MaxDelay {
		return 0, false
	}
	return max(r.Wait(n, b.cfg.Rand()), retryAfter), true
}
