package executor

import (
	"context"
	"sync"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
)

const (
	// lookUpRows is how many rows are rendered before their stored replies are looked up together, so that a distant store
	// costs one round trip for many rows and not for each.
	lookUpRows = 64
	// lookUpsAtOnce bounds the look-ups in flight.
	lookUpsAtOnce = 16
)

// dedupe lets equal requests share one call. Nil: every row makes its own.
type dedupe struct {
	flights *flights
	store   *replyStore // nil: nothing is kept beyond the call

	mu       sync.Mutex
	requeued []*job // whose leader failed: they are submitted again
}

// newDedupe returns what STAGE_DEDUPE selects.
func newDedupe(cfg *config.Config) *dedupe {
	switch cfg.Rows.Dedupe {
	case "inflight":
		return &dedupe{flights: newFlights(0)}
	case "stored": // a reply on its way to the store serves from memory
		return &dedupe{flights: newFlights(cfg.Rows.DedupeTTL)}
	default:
		return nil
	}
}

// OpenStore opens the store of replies that STAGE_DEDUPE=stored needs, and creates its stream. It must be called before
// Run; with any other STAGE_DEDUPE it does nothing.
func (e *Executor) OpenStore(ctx context.Context, nc *nats.Conn) (err error) {
	if e.cfg.Rows.Dedupe == "stored" {
		e.dedupe.store, err = openReplyStore(ctx, nc, e.cfg, e.log)
	}
	return err
}

// FlushStore waits until the replies of this run are stored, at most until ctx ends.
func (e *Executor) FlushStore(ctx context.Context) {
	if e.dedupe != nil && e.dedupe.store != nil {
		e.dedupe.store.flush(ctx)
	}
}

// lookUp finds the stored replies to the jobs' requests.
func (e *Executor) lookUp(ctx context.Context, jobs []*job) {
	if e.dedupe == nil || e.dedupe.store == nil {
		return
	}
	var group sync.WaitGroup
	room := make(chan struct{}, lookUpsAtOnce)
	for _, j := range jobs {
		room <- struct{}{}
		group.Go(func() {
			j.found = e.dedupe.store.get(ctx, j.key)
			<-room
		})
	}
	group.Wait()
}

// share answers the job without a call of its own if the reply to an equal request is known, or will be. If it reports
// false the job must be submitted, and leads: jobs with an equal request wait for its call.
func (e *Executor) share(j *job) bool {
	if e.dedupe == nil {
		return false
	}
	if found := j.found; found != nil {
		j.found = nil
		if e.answerWith(j, found, true) {
			return true
		}
	}
	known, leads := e.dedupe.flights.join(j)
	if known == nil {
		return !leads
	}
	return e.answerWith(j, known, false)
}

// shareReply answers the jobs that wait for this one's call, and stores the reply. It runs on a worker.
func (e *Executor) shareReply(j *job, a *answer) {
	if e.dedupe == nil {
		return
	}
	for _, follower := range e.dedupe.flights.resolve(j.key, a) {
		tracing.FromRow(follower.row).SharesWith(tracing.FromRow(j.row))
		if !e.answerWith(follower, a, false) {
			e.requeue(follower)
		}
	}
	if e.dedupe.store != nil {
		e.dedupe.store.put(j.key, a)
	}
}

// finishFlight releases the jobs that waited for one that got no reply. A permanent error is a verdict on the request
// and holds for them too; a transient one, a stop, or a row that moved to another replica does not: they are submitted
// again.
func (e *Executor) finishFlight(r result) {
	if e.dedupe == nil {
		return
	}
	followers := e.dedupe.flights.finish(r.In.key)
	if len(followers) == 0 {
		return
	}
	if r.Class != pool.Permanent {
		e.requeue(followers...)
		return
	}
	for _, j := range followers {
		j.errors = r.In.errors
		e.answerError(j, r.Err, result{In: j, Finished: r.Finished, Stats: r.Stats}, auditlog.SourceDedupe)
	}
}

// requeue has jobs that waited for another submitted again, by Run.
func (e *Executor) requeue(jobs ...*job) {
	e.dedupe.mu.Lock()
	e.dedupe.requeued = append(e.dedupe.requeued, jobs...)
	e.dedupe.mu.Unlock()
	e.signal()
}

// takeRequeued returns the jobs that must be submitted again.
func (d *dedupe) takeRequeued() []*job {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	jobs := d.requeued
	d.requeued = nil
	return jobs
}

// recallFollowers hands back the rows that wait for the call of another row and are no longer wanted: that call may
// wait for capacity for ever, and the hand-over of their partition must not. A job that begins to wait after it was
// found wanted is missed: the recall is repeated until the partition is handed over.
func (e *Executor) recallFollowers() {
	for _, j := range e.dedupe.recall() {
		e.handBack(j.row)
	}
}

// recall returns the jobs whose rows are no longer wanted, of those that wait for a leader or to be submitted again.
func (d *dedupe) recall() (unwanted []*job) {
	if d == nil {
		return nil
	}
	unwanted = d.flights.recall()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requeued, unwanted = splitUnwanted(d.requeued, unwanted)
	return unwanted
}
