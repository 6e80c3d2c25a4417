package pool

import (
	"context"
	"sync"
)

// inbox is how other goroutines reach the scheduler. It is a mutex around two queues rather than channels: the
// scheduler takes what has gathered in one go, and a done callback that takes its time does not hold up Submit. With
// an unbuffered channel for each way, instant calls cost twice as much.
type inbox struct {
	limit   int           // Config.QueueLimit
	wake    chan struct{} // holds a token while there may be something to take
	stopped chan struct{} // closed by stop

	mu      sync.Mutex
	jobs    fifo // submitted
	ended   fifo // their calls have ended
	closed  bool // no more jobs will come
	sift    bool // a single attempt was withdrawn
	recall  func(*task) bool
	waiting int           // jobs that wait, retries included
	lanes   map[int]int   // the same by lane
	busy    int           // lanes with such jobs
	vacated chan struct{} // closed when a job waits no longer
	blocked bool          // somebody waits for that
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

// submit waits for room and gives t to the scheduler, or returns ErrStopped or the cause of ctx.
func (b *inbox) submit(ctx context.Context, t *task) error {
	b.mu.Lock()
	for !b.closed && b.room(t.lane) <= 0 {
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

// add gives t to the scheduler, or returns ErrStopped. It does not block.
func (b *inbox) add(t *task) error {
	b.mu.Lock()
	return b.put(t)
}

// put ends what submit and add begin; it unlocks. A single attempt counts for nothing: the queue is full as long as a
// pause holds the jobs, and a single attempt must not wait for that.
func (b *inbox) put(t *task) error {
	if b.closed {
		b.mu.Unlock()
		return ErrStopped
	}
	if !t.once {
		b.count(t.lane, 1)
	}
	b.jobs.push(t)
	b.mu.Unlock()
	b.signal()
	return nil
}

// room returns for how many more jobs of the lane there is room. A lane that has less than its share of the queue has room
// for that in a full one, else the lane that filled it would keep the others out until it is worked off; only where that
// made the queue twice as long it is a single job.
func (b *inbox) room(lane int) int {
	n, busy := b.lanes[lane], b.busy
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
	before := b.lanes[lane]
	b.lanes[lane] = before + n
	b.waiting += n
	switch {
	case before == 0:
		b.busy++
	case before+n == 0:
		b.busy--
	}
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

// occupy counts a job that waits again; it never blocks, so there may be more of them than the limit.
func (b *inbox) occupy(t *task) {
	b.mu.Lock()
	b.count(t.lane, 1)
	b.mu.Unlock()
}

// vacate counts a job that waits no longer.
func (b *inbox) vacate(t *task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(t.lane, -1)
	if b.blocked {
		b.blocked = false
		close(b.vacated)
		b.vacated = make(chan struct{})
	}
}
