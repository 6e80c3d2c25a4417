package pool

import (
	"context"
	"sync"
)

// inbox is how other goroutines reach the scheduler. It is a mutex around two queues
// rather than channels: the scheduler takes what has gathered in one go, and a slow done
// callback does not block Submit. With an unbuffered channel for each direction, instant
// calls cost twice as much.
type inbox struct {
	limit   int           // Config.QueueLimit
	ahead   int           // new jobs in line that leave no slot empty, see Pool.Room
	wake    chan struct{} // holds a token while there may be something to take
	stopped chan struct{} // closed by finish and stop

	mu sync.Mutex // guards all below; never held over a channel operation that blocks

	intake

	waiting int // jobs that wait, retries included
	fresh   int // of these, the jobs without an attempt

	vacated chan struct{} // closed, and replaced, when a job waits no longer
	blocked bool          // a submit waits for that
}

// intake is what has come in since the scheduler last emptied the inbox.
type intake struct {
	jobs      fifo             // submitted
	ended     fifo             // their calls have ended
	closed    bool             // no more jobs will come; never false again
	draining  bool             // those that wait are handed back; never false again
	recall    func(*task) bool // jobs to hand back, or nil
	halt      *haltOrder       // the last one, or nil
	probe     bool             // the next probe goes at once
	questions []question       // why jobs wait
}

func newInbox(limit, size int) *inbox {
	return &inbox{
		limit:   limit,
		ahead:   max(1, size/16),
		wake:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
		vacated: make(chan struct{}),
	}
}

// submit waits for room and passes t to the scheduler, or returns ErrStopped or the cause
// of ctx.
func (b *inbox) submit(ctx context.Context, t *task) error {
	b.mu.Lock()
	for !b.closed && b.waiting >= b.limit {
		vacated := b.vacated
		b.blocked = true
		b.mu.Unlock()
		select {
		case <-vacated:
		case <-b.stopped:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		b.mu.Lock()
	}
	return b.put(t)
}

// add passes t to the scheduler, or returns ErrStopped. It does not block.
func (b *inbox) add(t *task) error {
	b.mu.Lock()
	return b.put(t)
}

// put completes submit and add, and unlocks.
func (b *inbox) put(t *task) error {
	if b.closed {
		b.mu.Unlock()
		return ErrStopped
	}
	b.waiting++
	b.fresh++
	b.jobs.push(t)
	b.mu.Unlock()
	b.signal()
	return nil
}

// submitted returns how many jobs the scheduler has not yet taken up.
func (b *inbox) submitted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.jobs.size
}

// room is [Pool.Room].
func (b *inbox) room() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(b.limit-b.waiting, b.ahead-b.fresh)
}

// full reports whether no more jobs are taken because so many wait, retries included.
func (b *inbox) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting >= b.limit
}

func (b *inbox) end(t *task) {
	b.mu.Lock()
	b.ended.push(t)
	b.mu.Unlock()
	b.signal()
}

// finish closes the inbox for jobs. What has been submitted is still there to take.
func (b *inbox) finish() { b.close(false) }

// stop closes the inbox for jobs, and makes the scheduler hand back those that wait.
func (b *inbox) stop() { b.close(true) }

func (b *inbox) close(draining bool) {
	b.mu.Lock()
	first, news := !b.closed, !b.closed || draining && !b.draining
	b.closed, b.draining = true, b.draining || draining
	b.mu.Unlock()
	if first {
		close(b.stopped)
	}
	if news { // otherwise the scheduler, which stops again in each turn, would wake itself
		b.signal()
	}
}

// recallJobs makes the scheduler hand back the waiting jobs that are stale. Calls that
// the scheduler has not yet acted on add up.
func (b *inbox) recallJobs(stale func(*task) bool) {
	b.mu.Lock()
	if earlier := b.recall; earlier != nil {
		later := stale
		stale = func(t *task) bool { return earlier(t) || later(t) }
	}
	b.recall = stale
	b.mu.Unlock()
	b.signal()
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) take() intake {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.intake
	b.intake = intake{closed: in.closed, draining: in.draining}
	return in
}

// occupy counts a job that waits again; it never blocks, so there may be more than the
// limit.
func (b *inbox) occupy() {
	b.mu.Lock()
	b.waiting++
	b.mu.Unlock()
}

// vacate uncounts a job that waits no longer, and wakes blocked submits. Fresh is set if
// it was waiting for its first attempt.
func (b *inbox) vacate(fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
	if fresh {
		b.fresh--
	}
	if b.blocked {
		b.blocked = false
		close(b.vacated)
		b.vacated = make(chan struct{})
	}
}
