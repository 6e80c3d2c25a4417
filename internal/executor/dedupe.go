package executor

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/pool"
)

const (
	// lookUpRows is how many rows are rendered before their stored replies are looked up together, so that a store that
	// is far away costs a round trip for many rows and not for each.
	lookUpRows = 64
	// lookUpsAtOnce bounds the look-ups under way.
	lookUpsAtOnce = 16
)

// dedupe lets equal requests share one call. Nil: every row makes its own.
type dedupe struct {
	flights *flights
	store   *replyStore // nil: nothing is kept beyond the call

	mu   sync.Mutex
	back []*job // whose leader failed: they lead themselves
}

// newDedupe returns what STAGE_DEDUPE asks for.
func newDedupe(cfg *config.Config) *dedupe {
	switch cfg.Rows.Dedupe {
	case "inflight":
		return &dedupe{flights: newFlights(0)}
	case "stored": // what is on its way to the store serves from memory
		return &dedupe{flights: newFlights(cfg.Rows.DedupeTTL)}
	default:
		return nil
	}
}

// OpenStore opens the store that STAGE_DEDUPE=stored asks for. It must be called before run.
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
func (d *dedupe) lookUp(ctx context.Context, jobs []*job) {
	if d == nil || d.store == nil {
		return
	}
	var group sync.WaitGroup
	room := make(chan struct{}, lookUpsAtOnce)
	for _, j := range jobs {
		room <- struct{}{}
		group.Go(func() {
			j.found = d.store.get(ctx, j.key)
			<-room
		})
	}
	group.Wait()
}

// takeBack returns the jobs that are to be submitted after all.
func (d *dedupe) takeBack() []*job {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	jobs := d.back
	d.back = nil
	return jobs
}

// recallShared hands back the rows that wait for the call of another row and are no longer wanted: that call may wait for
// capacity for ever, and the hand-over of their partition must not. A job that is about to wait, after it was found to be
// wanted, is missed: the recall is repeated until the partition is handed over.
func (e *Executor) recallShared() {
	for _, j := range e.dedupe.recall() {
		e.reply(j.row, consumer.Reply{HandedBack: true})
	}
}

// recall returns the jobs that are no longer wanted out of those that wait for a leader, or to lead themselves.
func (d *dedupe) recall() (unwanted []*job) {
	if d == nil {
		return nil
	}
	unwanted = d.flights.recall()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.back, unwanted = splitUnwanted(d.back, unwanted)
	return unwanted
}

// shared answers the job without a call of its own if there is an answer, or will be. Else the job must be submitted.
func (e *Executor) shared(j *job) bool {
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

// landed tells the other jobs with this request, and the store, what the leader was answered. It runs on a worker.
func (e *Executor) landed(j *job, a *answer) {
	if e.dedupe == nil {
		return
	}
	for _, other := range e.dedupe.flights.land(j.key, a) {
		tracing.Of(other.row).SharesWith(tracing.Of(j.row))
		if !e.answerWith(other, a, false) {
			e.giveBack(other)
		}
	}
	if e.dedupe.store != nil {
		e.dedupe.store.put(j.key, a)
	}
}

// ended lets go of the jobs that waited for one that was not answered. A verdict on the request holds for them too; what
// was bad luck, or a stop, or a row that went to another replica, does not: they go on by themselves. It runs on the
// pool's goroutine.
func (e *Executor) ended(r pool.Result[*job, struct{}]) {
	if e.dedupe == nil {
		return
	}
	waiting := e.dedupe.flights.end(r.In.key)
	if len(waiting) == 0 {
		return
	}
	if r.Class == pool.Permanent {
		for _, j := range waiting {
			j.errors = r.In.errors
			e.answerError(j, r.Err, pool.Result[*job, struct{}]{Finished: r.Finished, Stats: r.Stats}, auditlog.SourceDedupe)
		}
		return
	}
	e.giveBack(waiting...)
}

// giveBack lets jobs that waited for another go on by themselves.
func (e *Executor) giveBack(jobs ...*job) {
	e.dedupe.mu.Lock()
	e.dedupe.back = append(e.dedupe.back, jobs...)
	e.dedupe.mu.Unlock()
	e.signal()
}

// answerWith answers the job with the reply to an equal request. It reports false if the reply does not validate, which
// can only be one that was stored under another schema.
func (e *Executor) answerWith(j *job, a *answer, stored bool) bool {
	body, tooLarge, err := e.prompt.result(j, a)
	if err != nil {
		return false
	}
	r := pool.Result[*job, struct{}]{Finished: time.Now(), Stats: e.Pool.Stats()}
	if tooLarge != nil {
		e.answerError(j, tooLarge, r, auditlog.SourceDedupe)
		return true
	}
	event := e.event(j, r)
	event.Source = auditlog.SourceDedupe
	reply := consumer.Reply{Body: body, Event: event, RequestHash: j.key, Form: e.prompt.form()}
	if stored {
		reply.RequestHash = "" // it is kept already
	}
	e.reply(j.row, reply)
	return true
}
