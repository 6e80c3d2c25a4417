package pool

import (
	"context"
	"sync"
)

// inbox is how other goroutines reach the scheduler. It is a mutex around two queues rather than channels: the
// scheduler takes what has gathered in one go, and a done callback that takes its time does not hold up Submit. With
// an unbuffered channel for each way, instant calls cost twice as much.
type inbox struct {
	slots   chan struct{} // holds a token for each job that waits: while it is full, submit blocks
	surplus int           // jobs that wait without one; the scheduler's own
	wake    chan struct{} // holds a token while there may be something to take
	stopped chan struct{} // closed by stop

	mu     sync.Mutex
	jobs   fifo // submitted
	ended  fifo // their calls have ended
	closed bool // no more jobs will come
	sift   bool // a single attempt was withdrawn
	recall func(*task) bool
}

func newInbox(limit int) *inbox {
	return &inbox{
		slots:   make(chan struct{}, limit),
		wake:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
	}
}

// submit gives t to the scheduler, or returns ErrStopped or the cause of ctx.
func (b *inbox) submit(ctx context.Context, t *task) error {
	select {
	case b.slots <- struct{}{}:
	case <-b.stopped:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	b.mu.Lock()
	if b.closed { // the token does not matter any more
		b.mu.Unlock()
		return ErrStopped
	}
	b.jobs.push(t)
	b.mu.Unlock()
	b.signal()
	return nil
}

// submitOnce gives a single attempt to the scheduler, or returns ErrStopped. It takes no slot and does not block: the
// slots are full as long as a pause holds the jobs, and a single attempt must not wait for that.
func (b *inbox) submitOnce(t *task) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrStopped
	}
	b.jobs.push(t)
	b.mu.Unlock()
	b.signal()
	return nil
}

// withdraw tells the scheduler that a single attempt which waits has been given up.
func (b *inbox) withdraw() {
	b.mu.Lock()
	b.sift = true
	b.mu.Unlock()
	b.signal()
}

// end gives t back to the scheduler after its call.
func (b *inbox) end(t *task) {
	b.mu.Lock()
	b.ended.push(t)
	b.mu.Unlock()
	b.signal()
}

// stop closes the inbox for jobs. What has been submitted is still there to take.
func (b *inbox) stop() {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	b.mu.Unlock()
	if first {
		close(b.stopped)
		b.signal()
	}
}

// recallJobs has the scheduler hand back the waiting jobs that stale tells. A call before the scheduler came to it adds
// to the one before.
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

// recalled returns what recallJobs was told since it was last asked; nil: nothing.
func (b *inbox) recalled() (stale func(*task) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	stale, b.recall = b.recall, nil
	return stale
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox. When closed is true, no job will come after these; sift says that single attempts were
// withdrawn.
func (b *inbox) take() (jobs, ended fifo, closed, sift bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	jobs, ended, closed, sift = b.jobs, b.ended, b.closed, b.sift
	b.jobs, b.ended, b.sift = fifo{}, fifo{}, false
	return jobs, ended, closed, sift
}

// occupy counts a job that waits again; it never blocks, so there may be more of them than slots.
func (b *inbox) occupy() {
	select {
	case b.slots <- struct{}{}:
	default:
		b.surplus++
	}
}

// vacate counts a job that waits no longer.
func (b *inbox) vacate() {
	if b.surplus > 0 {
		b.surplus--
		return
	}
	<-b.slots
}
