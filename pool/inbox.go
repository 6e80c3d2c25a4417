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
	wake    chan struct{} // holds a token while there may be something to take
	stopped chan struct{} // closed by finish and stop

	mu sync.Mutex // guards all below; never held over a channel operation that blocks

	intake

	// Room: waiting is the sum of lanes. Single attempts are in none.
	waiting int         // jobs that wait, retries included
	lanes   map[int]int // the same by lane, of those with any

	vacated chan struct{} // closed, and replaced, when a job waits no longer
	blocked bool          // a submit waits for that
}

// intake is what has come in since the scheduler last emptied the inbox.
type intake struct {
	jobs      fifo             // submitted
	ended     fifo             // their calls have ended
	closed    bool             // no more jobs will come; never false again
	draining  bool             // those that wait are handed back; never false again
	withdrawn bool             // a single attempt was withdrawn
	recall    func(*task) bool // jobs to hand back, or nil
	halt      *haltOrder       // the last one, or nil
	probe     bool             // the next probe goes at once
	questions []question       // why jobs wait
}

func newInbox(limit int) *inbox {
	return &inbox{
		limit:   limit,
		wake:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
		lanes:   make(map[int]int),
		vacated: make(chan struct{}),
	}
}

// submit waits for room and passes t to the scheduler, or returns ErrStopped or the cause
// of ctx.
func (b *inbox) submit(ctx context.Context, t *task) error {
	b.mu.Lock()
	for !b.closed && b.room(t.Lane) <= 0 {
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

// put completes submit and add, and unlocks. A single attempt takes no room: the queue
// stays full as long as a pause holds the jobs, and a single attempt must not wait for
// that.
func (b *inbox) put(t *task) error {
	if b.closed {
		b.mu.Unlock()
		return ErrStopped
	}
	if !t.Single {
		b.count(t.Lane, 1)
	}
	b.jobs.push(t)
	b.mu.Unlock()
	b.signal()
	return nil
}

// room returns for how many more jobs of the lane there is room. A lane below its share
// of the queue may use the rest of its share even in a full one, else the lane that
// filled it would keep the others out until it has drained; once that has made the queue
// twice as long, each lane has room for one job.
func (b *inbox) room(lane int) int {
	n, busy := b.lanes[lane], len(b.lanes)
	if n == 0 {
		busy++
	}
	share := 1
	if b.waiting < 2*b.limit {
		share = max(1, b.limit/busy)
	}
	return max(b.limit-b.waiting, share-n)
}

// count adds n jobs to those of the lane that wait.
func (b *inbox) count(lane, n int) {
	b.waiting += n
	b.lanes[lane] += n
	if b.lanes[lane] == 0 {
		delete(b.lanes, lane)
	}
}

// withdrawSingle reports to the scheduler that the caller of a waiting single attempt has
// given up.
func (b *inbox) withdrawSingle() {
	b.mu.Lock()
	b.withdrawn = true
	b.mu.Unlock()
	b.signal()
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
	if news { // else the scheduler, which stops again in each turn, would wake itself
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
func (b *inbox) occupy(t *task) {
	b.mu.Lock()
	b.count(t.Lane, 1)
	b.mu.Unlock()
}

// vacate uncounts a job that waits no longer, and wakes blocked submits.
func (b *inbox) vacate(t *task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(t.Lane, -1)
	if b.blocked {
		b.blocked = false
		close(b.vacated)
		b.vacated = make(chan struct{})
	}
}
