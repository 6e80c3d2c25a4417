package executor

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
	"golang.org/x/sync/semaphore"
)

const (
	// mediaRowsAtOnce is how many jobs are looked up, or wait because a store can't be
	// reached, when no further row is taken.
	mediaRowsAtOnce = 64
	// mediaRetry is the time between two looks at a store that can't be reached.
	mediaRetry = time.Second
)

// mediaLookups reads the media of requests, in two steps.
//
// Before a job gets to the pool its media are looked up: their digests are part of the
// request, and so of its hash. This takes requests to a server, so it does not happen on
// the goroutine that renders rows ([mediaLookups.begin]). While a store can't be reached the
// row waits here. It is given back when the stage stops or its partition moves.
//
// When the call is made the bytes are read ([mediaLookups.load]), and forgotten after it. At
// most STAGE_WINDOW_BYTES of them are in memory, beside the rows.
//
// It is safe for concurrent use.
type mediaLookups struct {
	e     *Executor
	room  *semaphore.Weighted // bytes that calls may hold
	bytes int64               // of room
	group sync.WaitGroup      // look-ups

	mu   sync.Mutex
	jobs map[*job]*lookUp // that are looked up
	// line has the look-ups in the order in which they began. Jobs leave in this order, so
	// that the pool gets rows in stream order. One that waits for its store leaves the line,
	// and holds up no other.
	line []*lookUp
	// again are jobs whose store could not be reached when their calls were to be made.
	again []*job
}

// lookUp is one job whose media are looked up.
type lookUp struct {
	job    *job
	to     *backlog
	cancel context.CancelFunc
	found  bool  // its media have been looked up
	gone   bool  // it is not in the line, or need not be
	away   error // why its store can't be reached, or nil
	since  time.Time
}

func newMediaLookups(e *Executor) *mediaLookups {
	bytes := int64(e.cfg.Window.Bytes)
	return &mediaLookups{e: e, room: semaphore.NewWeighted(bytes), bytes: bytes, jobs: make(map[*job]*lookUp)}
}

// hasRoom reports whether another row may be taken that may have media.
func (m *mediaLookups) hasRoom() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.full()
}

// full reports whether no other job may begin. The caller has the lock.
func (m *mediaLookups) full() bool { return max(len(m.jobs), len(m.line)) >= mediaRowsAtOnce }

// begin looks up the media of the jobs whose requests have no bytes yet, and returns the
// other jobs. Those that it looks up come back in the backlog to.
func (m *mediaLookups) begin(ctx context.Context, jobs []*job, to *backlog) (rest []*job) {
	rest = jobs[:0]
	for _, j := range jobs {
		if j.prepared != nil {
			rest = append(rest, j)
			continue
		}
		within, cancel := context.WithCancel(ctx)
		at := &lookUp{job: j, to: to, cancel: cancel}
		m.mu.Lock()
		m.jobs[j] = at
		m.line = append(m.line, at)
		m.mu.Unlock()
		m.group.Go(func() {
			defer cancel()
			m.leave(at, m.lookUp(within, at))
		})
	}
	return rest
}

// lookUp looks up the media of a job, until their store answers. It reports whether they
// were found. If not, the job is answered or given back.
func (m *mediaLookups) lookUp(ctx context.Context, at *lookUp) (found bool) {
	j := at.job
	if j.key != "" { // its store did not answer a moment ago
		pause(ctx, mediaRetry)
	}
	for {
		err := m.describe(ctx, j)
		away, isAway := errors.AsType[*llm.AwayError](err)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil || !j.row.Wanted():
			m.e.giveBack(j)
			return false
		case !isAway:
			m.e.answerError(j, err, m.e.uncalled(j), "")
			return false
		}
		m.wait(at, away)
		pause(ctx, mediaRetry)
	}
}

// pause waits for so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// describe looks up the media of a job. If the job was looked up before, it only checks
// that the media are there: the request stays as it was, and a change since then is found
// when the call is made.
func (m *mediaLookups) describe(ctx context.Context, j *job) error {
	messages := j.request.Messages
	if j.key != "" {
		messages = undescribed(messages)
	}
	return m.e.prompt.Media.Describe(ctx, messages)
}

// undescribed returns a copy of messages whose media have no content yet.
func undescribed(messages []llm.Message) []llm.Message {
	var copied llm.Message
	for m := range llm.MediaOf(messages) {
		of := *m
		of.Content = nil
		copied.Parts = append(copied.Parts, llm.Part{Media: &of})
	}
	return []llm.Message{copied}
}

// wait notes that a job waits for its store. The first one is logged.
func (m *mediaLookups) wait(at *lookUp, away error) {
	m.mu.Lock()
	full, before := m.full(), m.held()
	if at.away == nil {
		at.since = time.Now()
	}
	at.away, at.gone = away, true
	m.advance()
	m.mu.Unlock()
	if before.Kind == "" {
		m.e.log.Warn("a picture, document or sound can't be read: its row waits", slog.Any("error", away))
	}
	if full {
		m.resume()
	}
}

// leave notes that a job is not looked up any more. One that was found goes on.
func (m *mediaLookups) leave(at *lookUp, found bool) {
	m.mu.Lock()
	full, before := m.full(), m.held()
	delete(m.jobs, at.job)
	after := m.held()
	switch {
	case found && at.gone: // it has waited
		at.to.addDescribed(at.job)
	case found:
		at.found = true
	default:
		at.gone = true
	}
	m.advance()
	m.mu.Unlock()
	if before.Kind != "" && after.Kind == "" {
		m.e.log.Info("pictures, documents and sounds are read again")
	}
	if full {
		m.resume()
	}
}

// resume makes the goroutines look again at rows that had to wait for room.
func (m *mediaLookups) resume() {
	m.e.backlog.resume()
	m.e.lane.backlog.resume()
}

// advance lets the first jobs of the line go on. The caller has the lock.
func (m *mediaLookups) advance() {
	for len(m.line) > 0 && (m.line[0].found || m.line[0].gone) {
		if at := m.line[0]; !at.gone {
			at.to.addDescribed(at.job)
		}
		m.line[0] = nil
		m.line = m.line[1:]
	}
}

// held returns the hold of the job that has waited longest, or the zero hold. The caller
// has the lock.
func (m *mediaLookups) held() (h hold.Hold) {
	for _, at := range m.jobs {
		if at.away != nil && (h.Kind == "" || at.since.Before(h.Since)) {
			h = hold.Hold{Scope: hold.Stage, Kind: hold.Media, Why: at.away.Error(), Since: at.since, Err: at.away}
		}
	}
	return h
}

// MediaHold returns why rows wait for their media, or a hold without a kind.
func (e *Executor) MediaHold() hold.Hold {
	e.media.mu.Lock()
	defer e.media.mu.Unlock()
	return e.media.held()
}

// of returns since when a row, or an element of it, waits for its media, and why. The error
// is nil if it does not.
func (m *mediaLookups) of(row *consumer.Row) (since time.Time, away error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for j, at := range m.jobs {
		if j.row == row && at.away != nil {
			return at.since, at.away
		}
	}
	return time.Time{}, nil
}

// soon reports whether a job may be about to leave for the pool. It looks at the jobs that
// are looked up, and then at those that have been: the other way round, one that becomes one
// of these between the two looks would be missed.
func (m *mediaLookups) soon() bool { return m.anyLookedUp() || m.e.backlog.hasDescribed() }

// anyLookedUp reports whether a job is looked up whose store is not known to be away, or
// is to be looked up again.
func (m *mediaLookups) anyLookedUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.again) > 0 {
		return true
	}
	for _, at := range m.jobs {
		if at.away == nil {
			return true
		}
	}
	return false
}

// recall makes jobs be given back whose rows are no longer wanted.
func (m *mediaLookups) recall() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for j, at := range m.jobs {
		if !j.row.Wanted() {
			at.cancel()
		}
	}
}

// lookAgain makes Run look up the media of a job again, whose store could not be reached.
func (m *mediaLookups) lookAgain(j *job) {
	m.mu.Lock()
	m.again = append(m.again, j)
	m.mu.Unlock()
	m.e.backlog.wake()
}

func (m *mediaLookups) takeAgain() []*job {
	m.mu.Lock()
	defer m.mu.Unlock()
	jobs := m.again
	m.again = nil
	return jobs
}

// load reads the media of a job's request for one call. release must be called after it.
// The verdict is that of an attempt that was not made.
func (m *mediaLookups) load(ctx context.Context, j *job, a pool.Attempt) (loaded *llm.Prepared, release func(), verdict pool.Verdict, err error) {
	if loaded, release, err = m.loadBytes(ctx, j); err == nil {
		return loaded, release, verdict, nil
	}
	failure, invalid := errors.AsType[*llm.Error](err)
	if invalid {
		failure = call.AsError(failure)
		return nil, nil, m.e.failed(j, a, failure, pooled.Judge(failure, &llm.Exchange{})), err
	}
	_, j.away = errors.AsType[*llm.AwayError](err)
	return nil, nil, pool.Verdict{Class: pool.Cancelled, Err: cmp.Or(context.Cause(ctx), err, io.ErrUnexpectedEOF), Unsent: true}, err
}

// loadBytes reads the media of a job's request, once there is room for them. release gives
// the room back.
func (m *mediaLookups) loadBytes(ctx context.Context, j *job) (loaded *llm.Prepared, release func(), err error) {
	n := min(j.prepared.MediaBytes(), m.bytes)
	if n == 0 {
		return j.prepared, func() {}, nil
	}
	if err = m.room.Acquire(ctx, n); err != nil {
		return nil, nil, err
	}
	if loaded, err = j.prepared.Load(ctx); err != nil {
		m.room.Release(n)
		return nil, nil, err
	}
	return loaded, func() { m.room.Release(n) }, nil
}
