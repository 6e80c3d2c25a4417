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

// sharing makes equal requests share one call (STAGE_DEDUPE). A job meets it three times:
// its stored reply is looked up ([sharing.lookUp]), it is answered or follows a job with an
// equal request ([sharing.join]), or it leads, and then its reply or its failure is passed
// on to those that follow it ([sharing.reply], [sharing.finish]).
//
// It is safe for concurrent use.
type sharing struct {
	e       *Executor
	flights *flights // or nil, and then every job makes its own call

	// Store keeps replies beyond their calls (STAGE_DEDUPE=stored). [sharing.OpenStore]
	// sets it. If it is nil, no reply is kept.
	Store *replyStore
}

func newSharing(e *Executor) *sharing {
	s := &sharing{e: e}
	switch e.cfg.Rows.Dedupe {
	case "inflight":
		s.flights = newFlights(0)
	case "stored": // a reply on its way to the store serves from memory
		s.flights = newFlights(e.cfg.Rows.DedupeTTL)
	}
	return s
}

// OpenStore opens the store of replies that STAGE_DEDUPE=stored needs, and creates its
// stream. It must be called before Run; with any other STAGE_DEDUPE it does nothing.
func (s *sharing) OpenStore(ctx context.Context, nc *nats.Conn) (err error) {
	if s.e.cfg.Rows.Dedupe == "stored" {
		s.Store, err = openReplyStore(ctx, nc, s.e.cfg, s.e.log.Logger)
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
func (s *sharing) lookUp(ctx context.Context, jobs []*job) {
	if s.Store == nil {
		return
	}
	defer s.e.steps.leave(s.e.steps.enter(hold.LookUp, "", time.Now(), jobs...))
	var group sync.WaitGroup
	room := make(chan struct{}, lookUpsAtOnce)
	for _, j := range jobs {
		room <- struct{}{}
		group.Go(func() {
			j.found = s.Store.get(ctx, j.key)
			<-room
		})
	}
	group.Wait()
}

// join answers the job without its own call if the reply to an equal request is known, or
// will be. If it reports false the job must be submitted, and leads: jobs with an equal
// request wait for its call.
func (s *sharing) join(j *job) bool {
	if s.flights == nil {
		return false
	}
	if found := j.found; found != nil {
		j.found = nil
		if s.e.answerWith(j, found, true) {
			return true
		}
	}
	known, leads := s.flights.join(j)
	if known == nil {
		return !leads
	}
	return s.e.answerWith(j, known, false)
}

// reply answers the jobs that wait for this one's call, and keeps the reply. It runs on a
// worker.
func (s *sharing) reply(j *job, a *answer) {
	if s.flights == nil {
		return
	}
	for _, follower := range s.flights.resolve(j.key, a) {
		tracing.FromRow(follower.row).SharesWith(tracing.FromRow(j.row))
		if !s.e.answerWith(follower, a, false) {
			s.requeue(follower)
		}
	}
	s.keep(j, a)
}

// keep stores the reply to a job's request, if replies are kept beyond their calls.
func (s *sharing) keep(j *job, a *answer) {
	if s.Store != nil {
		s.Store.put(j.key, j.row.StateID, a)
	}
}

// finish releases the jobs that waited for one that got no reply. They fail with it if its
// error is permanent, since that is a verdict on the request. They are submitted again
// after any other error and after a stop, and if its row moved to another replica or fails
// whatever the reply.
func (s *sharing) finish(r *result) {
	if s.flights == nil {
		return
	}
	followers := s.flights.finish(r.In.key)
	if len(followers) == 0 {
		return
	}
	if r.Class != pool.Permanent || r.In.skipped {
		s.requeue(followers...)
		return
	}
	for _, j := range followers {
		j.errors = r.In.errors
		s.e.answerError(j, r.Err, &result{In: j, Finished: r.Finished, Stats: r.Stats}, auditlog.SourceDedupe)
	}
}

// requeue makes Run submit jobs again that waited for another.
func (s *sharing) requeue(jobs ...*job) {
	s.flights.requeue(jobs)
	s.e.backlog.wake()
}
