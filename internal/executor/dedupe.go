package executor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
)

const (
	// lookUpRows is how many rows are rendered before their stored replies are looked up
	// together, so that a distant store costs one round trip for many rows and not for
	// each.
	lookUpRows = 64
	// lookUpsAtOnce bounds the look-ups in flight.
	lookUpsAtOnce = 16
)

// OpenStore opens the store of replies that STAGE_DEDUPE=stored needs, and creates its
// stream. It must be called before Run; with any other STAGE_DEDUPE it does nothing.
func (e *Executor) OpenStore(ctx context.Context, nc *nats.Conn) (err error) {
	if e.cfg.Rows.Dedupe == "stored" {
		e.Store, err = openReplyStore(ctx, nc, e.cfg, e.log.Logger)
	}
	return err
}

// CreateStore creates the stream of replies that STAGE_DEDUPE=stored needs, or checks the
// one that is there.
func CreateStore(ctx context.Context, nc *nats.Conn, cfg *config.Config, log *slog.Logger) error {
	_, err := openReplyStore(ctx, nc, cfg, log)
	return err
}

// lookUp finds the stored replies to the jobs' requests.
func (e *Executor) lookUp(ctx context.Context, jobs []*job) {
	if e.Store == nil {
		return
	}
	defer e.steps.leave(e.steps.enter(hold.LookUp, "", time.Now(), jobs...))
	var group sync.WaitGroup
	room := make(chan struct{}, lookUpsAtOnce)
	for _, j := range jobs {
		room <- struct{}{}
		group.Go(func() {
			j.found = e.Store.get(ctx, j.key)
			<-room
		})
	}
	group.Wait()
}

// share answers the job without its own call if the reply to an equal request is known,
// or will be. If it reports false the job must be submitted, and leads: jobs with an
// equal request wait for its call.
func (e *Executor) share(j *job) bool {
	if e.flights == nil {
		return false
	}
	if found := j.found; found != nil {
		j.found = nil
		if e.answerWith(j, found, true) {
			return true
		}
	}
	known, leads := e.flights.join(j)
	if known == nil {
		return !leads
	}
	return e.answerWith(j, known, false)
}

// shareReply answers the jobs that wait for this one's call, and stores the reply. It
// runs on a worker.
func (e *Executor) shareReply(j *job, a *answer) {
	if e.flights == nil {
		return
	}
	for _, follower := range e.flights.resolve(j.key, a) {
		tracing.FromRow(follower.row).SharesWith(tracing.FromRow(j.row))
		if !e.answerWith(follower, a, false) {
			e.requeue(follower)
		}
	}
	if e.Store != nil {
		e.Store.put(j.key, j.row.StateID, a)
	}
}

// finishFlight releases the jobs that waited for one that got no reply. A permanent error
// is a verdict on the request and holds for them too; a transient one, a stop, a row that
// moved to another replica, or one that fails whatever the reply does not: they are
// submitted again.
func (e *Executor) finishFlight(r *result) {
	if e.flights == nil {
		return
	}
	followers := e.flights.finish(r.In.key)
	if len(followers) == 0 {
		return
	}
	if r.Class != pool.Permanent || r.In.skipped {
		e.requeue(followers...)
		return
	}
	for _, j := range followers {
		j.errors = r.In.errors
		e.answerError(j, r.Err, &result{In: j, Finished: r.Finished, Stats: r.Stats}, auditlog.SourceDedupe)
	}
}

// requeue has Run submit jobs again that waited for another.
func (e *Executor) requeue(jobs ...*job) {
	e.flights.requeue(jobs)
	e.backlog.wake()
}
