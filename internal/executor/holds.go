package executor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
)

// RowHold returns why a row that was started, and is not answered, waits. It implements
// [consumer.Waiter].
//
// A row is in one of these places at a time, and is looked for from the last one to the
// first: in flight, at a step that takes long, at its media, behind an equal row, in the
// queue of the lane, in the pool. A row that is found in none waits in the queue before the
// pool. One that moves on while it is looked for is taken for such a row.
func (e *Executor) RowHold(ctx context.Context, row *consumer.Row) hold.Hold {
	h := hold.OfRow(row.Seq, hold.Turn)
	h.Since = row.Taken
	for _, o := range e.caller.InFlight() {
		if o.Partition == row.Partition && o.Sequence == row.Seq {
			h.Kind, h.By, h.Since = hold.Call, o.Provider, o.Since
			return h
		}
	}
	if at, is := e.steps.of(row); is {
		h.Kind, h.By, h.Since = at.kind, at.by, at.since
		return h
	}
	if since, away := e.media.of(row); away != nil {
		h.Kind, h.Why, h.Since = hold.Media, away.Error(), since
		return h
	}
	if leader, follows := e.Sharing.flights.leaderOf(row); follows {
		h.Kind, h.By = hold.Shared, "row "+hold.RowName(leader)
		return h
	}
	if e.lane.backlog.queue.has(row) {
		h.Kind, h.Why = hold.Batch, "the batch lane has not come to it yet"
		return h
	}
	w, ok := e.Pool.Waits(ctx, func(j *job) bool { return j.isFor(row) })
	switch {
	case !w.Known && !row.MayBegin():
		h.Kind, h.By = hold.Window, "bytes"
		return h
	case !ok:
		return h
	case !w.Known && w.Hold.Kind == hold.Turn && e.steps.any(hold.LookUp): // it comes with the next ones
		h.Kind = hold.LookUp
		return h
	}
	pooled := w.Hold
	pooled.Scope, pooled.Name = h.Scope, h.Name
	if pooled.Since.IsZero() {
		pooled.Since = row.Taken
	}
	if pooled.By == "" && pooled.Kind != hold.Turn && pooled.Kind != hold.Slots && pooled.Kind != hold.Shortage {
		pooled.By = e.caller.At(w.Server).Provider()
	}
	return pooled
}

// steps has the jobs that are at a step which may take long, and is no wait in the pool. For
// example, a call has ended, and the audit has no room for its event until earlier ones are
// stored. A call is among them only if it is for several rows, because
// [call.Caller.InFlight] names the first of these alone. There are at most as many steps as
// the pool has slots, and one for each goroutine that renders rows. The zero value is
// empty. It is safe for concurrent use.
type steps struct {
	mu   sync.Mutex
	at   []step // one without jobs has ended: its place is free
	free []int  // indexes of these
}

// step is what jobs wait for, since when, and by what.
type step struct {
	kind  hold.Kind
	by    string
	since time.Time
	jobs  []*job
}

// enter notes that jobs are at a step since an instant. What it returns must be passed to
// [steps.leave] when the step has ended.
func (s *steps) enter(kind hold.Kind, by string, since time.Time, jobs ...*job) (place int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		place = len(s.at)
		s.at = append(s.at, step{})
	} else {
		place, s.free = s.free[last], s.free[:last]
	}
	at := &s.at[place]
	at.kind, at.by, at.since, at.jobs = kind, by, since, append(at.jobs, jobs...)
	return place
}

// leave notes that a step has ended.
func (s *steps) leave(place int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.at[place]
	clear(at.jobs) // or its array would keep rows alive that were emitted long ago
	at.jobs = at.jobs[:0]
	s.free = append(s.free, place)
}

// of returns the step that a row, or an element of it, is at.
func (s *steps) of(row *consumer.Row) (at step, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at {
		if slices.ContainsFunc(at.jobs, func(j *job) bool { return j.row == row }) {
			return at, true
		}
	}
	return step{}, false
}

// any reports whether some job is at a step of this kind.
func (s *steps) any(kind hold.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.at, func(at step) bool { return len(at.jobs) > 0 && at.kind == kind })
}
