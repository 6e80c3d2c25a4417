package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

const (
	// batchPatience is how long a prompt waits for its turn in the pool. While the provider has no capacity the retries of
	// rows go first, and rows may wait for ever: somebody who asks and waits for the answer should be told.
	batchPatience = 5 * time.Minute
	// batchAuditPatience is how long a reply waits for the audit to hold the calls that it is made of.
	batchAuditPatience = 5 * time.Second
)

// reasonCostCeiling is the reason of a prompt that was not asked since STAGE_MAX_COST_USD is reached.
const reasonCostCeiling llm.Reason = "cost_ceiling"

var (
	errNoTurn   = fmt.Errorf("the pool had no turn for the prompt within %v: the provider has no capacity, or rows and other batches go before", batchPatience)
	errStopping = errors.New("the stage is stopping: ask again")
)

// batchRun is one batched request on its way: it makes the calls of its prompts through the stage's pool. It implements
// [batch.Caller].
type batchRun struct {
	*Service
	id string

	mu     sync.Mutex
	calls  int           // made so far
	stored int           // of them in the audit
	all    chan struct{} // holds a token when calls in the audit are to be counted again
}

func (b *Service) newRun() *batchRun {
	return &batchRun{Service: b, id: call.NewID(), all: make(chan struct{}, 1)}
}

// batchCall is one attempt at a prompt on its way through the pool.
type batchCall struct {
	run      *batchRun
	request  llm.Request
	target   int // whom prepared asks
	prepared *llm.Prepared
}

// Weight estimates the tokens of the call. It implements [pool.Weighted].
func (c *batchCall) Weight(int) int64 { return call.EstimateTokens(c.prepared, &c.request) }

// Provider implements [batch.Caller].
func (r *batchRun) Provider() string { return r.caller.At(0).Provider() }

// Call makes one attempt at a request through the pool. When ctx ends, or after batchPatience, it waits no longer for its
// turn; a call in flight is waited for. It implements [batch.Caller].
func (r *batchRun) Call(ctx context.Context, request *llm.Request) (*llm.Reply, error) {
	first := r.caller.At(0)
	if err := r.caller.Affordable(request.Model); err != nil {
		return nil, err
	}
	call := &batchCall{run: r, request: *request}
	var err error
	if call.prepared, err = first.Prepare(&call.request); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, batchPatience, errNoTurn)
	defer cancel()
	select {
	case r.permits <- struct{}{}:
	case <-ctx.Done():
		return nil, r.unasked(context.Cause(ctx))
	}
	defer func() { <-r.permits }()
	result := r.once.Do(ctx, call)
	if result.Err == nil {
		return result.Out, nil
	}
	return result.Out, r.unasked(result.Err)
}

// unasked gives the errors of the pool their meaning for a prompt; those of a call stay as they are.
func (r *batchRun) unasked(err error) error {
	switch fault, ok := errors.AsType[*llm.Error](err); {
	case errors.Is(err, pool.ErrPaused):
		paused := &llm.Error{Provider: r.Provider(), Class: llm.Fatal, Reason: llm.ReasonAPICallFailed, Err: fmt.Errorf("no call was made: %w", err)}
		if errors.Is(err, pool.ErrOutage) {
			paused.Class = llm.Transient // it may be over at the next attempt
		}
		if errors.Is(err, cost.ErrCeiling) {
			paused.Reason = reasonCostCeiling
		}
		return paused
	case ok:
		return fault
	case errors.Is(err, errNoTurn):
		return &llm.Error{Provider: r.Provider(), Class: llm.Capacity, Reason: llm.ReasonRateLimited, Err: err}
	}
	if p, ok := errors.AsType[*pool.PanicError](err); ok {
		r.log.Error("a call panicked: this is a fault of the stage, please report it",
			slog.String("batch_id", r.id), slog.Any("panic", p.Value), slog.String("stack", string(p.Stack)))
		return &llm.Error{Class: llm.Permanent, Reason: llm.ReasonInternalError, Err: err}
	}
	return &llm.Error{Reason: llm.ReasonCancelled, Err: errStopping}
}

// attempt makes one call. It runs on a worker of the pool.
func (b *Service) attempt(ctx context.Context, c *batchCall, a pool.Attempt) (*llm.Reply, pool.Verdict) {
	if err := b.caller.Exhausted(); err != nil {
		fault := &llm.Error{Class: llm.Fatal, Reason: reasonCostCeiling, Err: err}
		return nil, pool.Verdict{Class: pool.Fatal, Err: fault, Unsent: true}
	}
	if a.Server != c.target {
		ended, err := b.readdress(c, a.Server)
		if err != nil {
			return nil, pool.Verdict{Class: pool.Cancelled, Err: err, Unsent: true}
		}
		defer ended()
	}
	x, err := b.caller.At(c.target).Do(ctx, c.prepared)
	call := b.caller.Outcome(c.target, c.prepared, a, x, err)
	c.run.record(call.Event)
	b.caller.Count(call)
	b.log.Debug("call", slog.String("batch_id", c.run.id), slog.String("provider", call.Event.Provider),
		slog.String("status", string(call.Event.Status)), slog.Duration("latency", x.Latency))
	return x.Reply, call.Verdict()
}

// readdress makes the call one to a fallback, to which the pool sends it while the first provider is without capacity: of
// the fallback's own model, and within the fallback's own limit a minute.
func (b *Service) readdress(c *batchCall, to int) (ended func(), err error) {
	t := b.caller.At(to)
	ended, ok := func() {}, true
	if t.Provider() != c.run.Provider() { // the first one's turn is counted already
		ended, ok = b.batch.TryTurn(t.Provider())
	}
	if !ok {
		return nil, &llm.Error{
			Provider: t.Provider(), Class: llm.Capacity, Reason: llm.ReasonAPICallFailed,
			Err: errors.New("no call was made: STAGE_BATCH_RPM allows no more to this fallback within the minute"),
		}
	}
	c.target, c.request.Model = to, ""
	if c.prepared, err = t.Prepare(&c.request); err != nil {
		ended()
		return nil, err
	}
	return ended, nil
}

// record stores the event of a call. Its ids depend on nothing but the batch and the number of the call, so that what is
// published twice is stored once.
func (r *batchRun) record(c *auditlog.Call) {
	r.mu.Lock()
	c.Partition, c.Owner, c.BatchID, c.CallIndex = auditlog.All, r.caller.RunID(), r.id, r.calls
	r.calls++
	r.mu.Unlock()
	r.recorder.RecordCall(c, func() {
		r.mu.Lock()
		r.stored++
		r.mu.Unlock()
		select {
		case r.all <- struct{}{}:
		default:
		}
	})
}

// audited waits until the audit holds the calls of the batch, at most for batchAuditPatience: there is no result without
// its audit, but somebody waits for this one, and while the audit cannot be stored the stage is not ready.
func (r *batchRun) audited(ctx context.Context) {
	timer := time.NewTimer(batchAuditPatience)
	defer timer.Stop()
	for {
		r.mu.Lock()
		missing := r.calls - r.stored
		r.mu.Unlock()
		if missing == 0 {
			return
		}
		select {
		case <-r.all:
		case <-timer.C:
			r.log.Warn("a batched request is answered before its calls are in the audit", slog.String("batch_id", r.id), slog.Int("missing", missing))
			return
		case <-ctx.Done():
			return
		}
	}
}
