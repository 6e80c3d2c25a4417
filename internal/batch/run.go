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
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

const (
	// turnTimeout is how long a prompt waits for its turn in the pool. While the provider
	// has no capacity the retries of rows take precedence, and rows may wait for ever; a
	// client that waits for its reply must get an answer.
	turnTimeout = 5 * time.Minute
	// auditTimeout is how long a reply waits until the audit holds the calls that it is
	// made of.
	auditTimeout = 5 * time.Second
)

// reasonCostCeiling is the reason of a prompt that was not sent because
// STAGE_MAX_COST_USD is reached.
const reasonCostCeiling llm.Reason = "cost_ceiling"

var (
	errNoTurn = fmt.Errorf("the prompt got no turn in the pool within %v: the provider has no "+
		"capacity, or rows and other batches take precedence", turnTimeout)
	errStopping = errors.New("the stage is stopping: send it again")
)

// run is one batched request in progress: it makes the calls of its prompts through the
// stage's pool. It implements [llm.BatchCaller].
type run struct {
	service *Service
	id      string

	// deferred means that nobody waits for the batch: a prompt waits for its turn without
	// limit, and for each call to be in the audit.
	deferred bool
	// may returns why no call may start at the moment. Nil, and a nil error: it may.
	may func() error

	mu     sync.Mutex
	calls  int           // made so far
	stored int           // of them, in the audit; at most calls
	all    chan struct{} // holds a token when stored has changed
}

// newRun gives a batched request its identifier.
func (b *Service) newRun() *run {
	return &run{service: b, id: call.NewID(), all: make(chan struct{}, 1)}
}

// promptCall is one attempt at a prompt on its way through the pool: prepared holds the
// bytes of request for target.
type promptCall struct {
	request  llm.Request
	target   int
	prepared *llm.Prepared
	stored   chan struct{} // closed when the event of the call is in the audit; nil before the call
}

// weight estimates the tokens of the call.
func (c *promptCall) weight() int64 { return call.EstimateTokens(c.prepared, &c.request) }

// Provider is the first provider. It implements [llm.BatchCaller].
func (r *run) Provider() string { return r.service.caller.At(0).Provider() }

// Call makes one attempt at a request through the pool. When ctx ends, or after
// turnTimeout, it no longer waits for its turn; it always waits for a call in flight. It
// implements [llm.BatchCaller].
func (r *run) Call(ctx context.Context, request *llm.Request) (*llm.Reply, error) {
	first := r.service.caller.At(0)
	if err := r.service.caller.Affordable(request.Model); err != nil {
		return nil, err
	}
	c := &promptCall{request: *request}
	var err error
	if c.prepared, err = first.Prepare(&c.request); err != nil {
		return nil, err
	}
	if !r.deferred {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, turnTimeout, errNoTurn)
		defer cancel()
	}
	var reply *llm.Reply
	attempt := func(ctx context.Context, a pool.Attempt) (verdict pool.Verdict) {
		reply, verdict = r.attempt(ctx, c, a)
		return verdict
	}
	err = r.service.executor.CallOnce(ctx, c.weight, attempt)
	if r.deferred && c.stored != nil {
		r.awaitStored(c.stored)
	}
	if err != nil {
		err = r.explain(err)
	}
	return reply, err
}

// awaitStored waits until the event of a call is in the audit, at most for auditTimeout,
// before its result is kept.
func (r *run) awaitStored(stored <-chan struct{}) {
	timer := time.NewTimer(auditTimeout)
	defer timer.Stop()
	select {
	case <-stored:
	case <-timer.C:
		r.service.log.Warn("a result of a deferred batch is kept before its call is in the audit",
			slog.String("batch_id", r.id))
	}
}

// explain returns what an error of the pool means for a prompt, as an [*llm.Error]; that
// of a call stays as it is.
func (r *run) explain(err error) error {
	switch failure, ok := errors.AsType[*llm.Error](err); {
	case errors.Is(err, pool.ErrPaused):
		paused := &llm.Error{
			Provider: r.Provider(), Class: llm.Fatal, Reason: llm.ReasonAPICallFailed,
			Err: fmt.Errorf("no call was made: %w", err),
		}
		if errors.Is(err, pool.ErrOutage) {
			paused.Class = llm.Transient // it may be over at the next attempt
		}
		if r.deferred {
			paused.Class = llm.Capacity // it waits until the pause is over
		}
		if errors.Is(err, cost.ErrCeiling) {
			paused.Reason = reasonCostCeiling
		}
		return paused
	case ok:
		return failure
	case errors.Is(err, errUncertain):
		return &llm.Error{Reason: llm.ReasonCancelled, Err: err}
	case errors.Is(err, errNoTurn):
		return &llm.Error{
			Provider: r.Provider(), Class: llm.Capacity, Reason: llm.ReasonRateLimited, Err: err,
		}
	}
	if p, ok := errors.AsType[*pool.PanicError](err); ok {
		r.service.log.Error("a call panicked: this is a bug in the stage, please report it",
			slog.String("batch_id", r.id), slog.Any("panic", p.Value),
			slog.String("stack", string(p.Stack)))
		return &llm.Error{Class: llm.Permanent, Reason: llm.ReasonInternalError, Err: err}
	}
	return &llm.Error{Reason: llm.ReasonCancelled, Err: errStopping}
}

// attempt makes one call. It runs on a worker of the pool.
func (r *run) attempt(
	ctx context.Context, c *promptCall, a pool.Attempt,
) (*llm.Reply, pool.Verdict) {
	caller := r.service.caller
	if r.may != nil {
		if err := r.may(); err != nil {
			return nil, pool.Verdict{Class: pool.Cancelled, Err: err, Unsent: true}
		}
	}
	if err := caller.Exhausted(); err != nil {
		verdict := pooled.Judge(&llm.Error{Class: llm.Fatal, Reason: reasonCostCeiling, Err: err},
			&llm.Exchange{})
		verdict.Unsent = true
		return nil, verdict
	}
	if a.Server != c.target {
		ended, err := r.readdress(c, a.Server)
		if err != nil { // not the server's doing, so the pool must learn nothing from it
			return nil, pool.Verdict{Class: pool.Cancelled, Err: err, Unsent: true}
		}
		defer ended()
	}
	to := caller.At(c.target)
	place := caller.Began(call.Ongoing{
		Partition: call.NoPartition, Attempt: a.Number, Provider: to.Provider(),
		Model: c.prepared.Model,
	})
	x, err := to.Do(ctx, c.prepared)
	caller.Ended(place)
	o := caller.Outcome(c.target, c.prepared, a, x, err)
	c.stored = make(chan struct{})
	r.record(o.Event, c.stored)
	caller.Count(o)
	caller.NoteRefusal(o, func() []string { return []string{c.request.Prompt, c.request.Context} })
	r.service.log.Debug("call", slog.String("batch_id", r.id),
		slog.String("provider", o.Event.Provider),
		slog.String("status", string(o.Event.Status)),
		slog.Float64("latency_ms", milliseconds(x.Latency)))
	return x.Reply, o.Verdict()
}

// readdress prepares the call for a fallback, which the pool chooses while the first
// provider has no capacity: with the fallback's own model, and within its own limit of
// calls per minute. ended must be called when the call has ended.
func (r *run) readdress(c *promptCall, to int) (ended func(), err error) {
	t := r.service.caller.At(to)
	ended, ok := func() {}, true
	if t.Provider() != r.Provider() { // the first provider's turn is counted already
		ended, ok = r.service.batch.TryTurn(t.Provider())
	}
	if !ok {
		return nil, &llm.Error{
			Provider: t.Provider(), Class: llm.Capacity, Reason: llm.ReasonAPICallFailed,
			Err: errors.New("no call was made: STAGE_BATCH_RPM allows no more calls to this " +
				"fallback within the minute"),
		}
	}
	c.target, c.request.Model = to, ""
	if c.prepared, err = t.Prepare(&c.request); err != nil {
		ended()
		return nil, err
	}
	return ended, nil
}

// record stores the event of a call, and closes stored when it is.
func (r *run) record(c *auditlog.Call, stored chan<- struct{}) {
	r.mu.Lock()
	c.Partition, c.Owner, c.BatchID, c.CallIndex = auditlog.All, r.service.caller.RunID(), r.id,
		r.calls
	r.calls++
	r.mu.Unlock()
	r.service.recorder.RecordCall(c, func() {
		close(stored)
		r.mu.Lock()
		r.stored++
		r.mu.Unlock()
		select {
		case r.all <- struct{}{}:
		default:
		}
	})
}

// awaitAudit waits until the audit holds the calls of the batch, at most for
// auditTimeout: a row has no result without its audit, but here a client waits, and while
// the audit cannot be stored the stage is not ready anyway.
func (r *run) awaitAudit(ctx context.Context) {
	timer := time.NewTimer(auditTimeout)
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
			r.service.log.Warn("a batched request is answered before its calls are in the audit",
				slog.String("batch_id", r.id), slog.Int("missing", missing))
			return
		case <-ctx.Done():
			return
		}
	}
}
