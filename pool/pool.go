// Package pool makes calls to a rate-limited server, many at a time and as fast as the
// server allows.
//
// A job is done when its call succeeds or fails for good. Until then the pool retries:
// after a capacity error without limit and through the shared pacer, after a transient
// error a bounded number of times with exponential backoff and full jitter. A slot is
// held only while a call is in flight, unless [Config.Unkept] holds more. Every attempt,
// first or retry, goes through one pacer, whose law ([aimd.Classic], [aimd.Adaptive])
// decides when the next may go. The oldest retry precedes any new job, unless retries are
// refused again and again: a job that is refused alone stops no other. A fatal error, one
// about the caller rather than the job, pauses the pool, which probes until the cause is
// fixed. So do an outage of the server and an error that all jobs meet: a failure counts
// against a job only while others succeed.
//
//	p, err := pool.New(pool.Config{Size: 16, Retry: pool.DefaultRetry()}, call)
//	...
//	go func() {
//		for _, row := range rows {
//			p.Submit(ctx, row, func(r pool.Result[Row, Reply]) { ... })
//		}
//		p.Finish()
//	}()
//	err = p.Run(ctx) // returns when all jobs are done
//
// Cancel ctx to stop at once, or call Drain to finish only the calls in flight.
// [Pool.ExecuteBatch] is the synchronous form.
//
// Most programs need six names: [Config] and [New] make a [Pool], a [Func] makes an
// [Attempt] at a job and returns a [Verdict], and the job ends with a [Result]. Other
// programs may rely on these, with [Class], [Origin], [RetryConfig] and the errors. For
// more there are
//
//   - other servers, which take over while the first has no capacity: [Server], with a [Law] and
//     limits of its own (a [Gate]; package gate has some, and [Weighted] jobs weigh more than 1);
//   - what the pool should know about a job: [Traits];
//   - what the pool is doing: [Stats], with the [Pause] that holds it and the [Wait] of a job.
//
// The names of this second group serve this program, and may change with any release.
//
// One goroutine owns all state, so callbacks never run at the same time and statistics
// are consistent.
//
// The files, in reading order: pool.go, config.go, verdict.go and stats.go are the
// interface. inbox.go is how callers reach the scheduler, scheduler.go its loop, order.go
// the order in which jobs go, pause.go what pauses all of them, worker.go the calls. Each
// part of the scheduler's state has a file: queue.go the jobs that wait, route.go the
// servers that they may go to, server.go the law and gates of one of them, clock.go the
// time that deadlines count in, shortage.go what this machine is short of. holds.go says
// why a job waits. Package health decides whose failure an error is and when a server is
// out.
package pool

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

var (
	// ErrStopped is returned by Submit, Add and ExecuteBatch after Finish and once the
	// pool stops: it takes no more jobs.
	ErrStopped = errors.New("pool is stopped")
	// ErrHandedBack is the error of a job that the pool returned unfinished because it
	// stops, because the job was recalled ([Pool.Recall]), or because its call was
	// cancelled. The job may be submitted again, to this pool or another.
	ErrHandedBack = errors.New("job handed back unfinished")
	// ErrRowTimeout is in the error of a job that found no capacity, or met transient
	// errors, for Config.RowTimeout. The error also wraps that of the last attempt.
	ErrRowTimeout = errors.New("row timeout")

	// ErrOutage is in the error of a job that an outage held for Config.OutageHold, and
	// in that of a single attempt that was not made because of an outage or a shortage of
	// this machine.
	ErrOutage = errors.New("held by an outage")
	// ErrPaused is in the error of a single attempt (see [Traits]) that was not made
	// because the pool is paused. The error also wraps the cause of the pause, and
	// ErrOutage where the pause may end by itself.
	ErrPaused = errors.New("pool is paused")

	errRunTwice = errors.New("pool: Run was called before; make a new pool")
)

// Func makes one attempt at a job and judges the reply. It runs on one of Config.Size
// goroutines and should return soon after ctx is cancelled, with class Cancelled; the
// pool waits for it. Out is kept whatever the class. A panic becomes a [*PanicError] of
// class Permanent.
type Func[In, Out any] func(ctx context.Context, in In, a Attempt) (Out, Verdict)

// Pool executes jobs. It serves one Run. All its methods are safe for concurrent use.
type Pool[In, Out any] struct {
	call    Func[In, Out]
	sched   *scheduler
	started atomic.Bool
}

// New returns a pool that calls call for each job, or all problems of cfg in one error.
func New[In, Out any](cfg Config, call Func[In, Out]) (*Pool[In, Out], error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.complete()
	sched, err := newScheduler(cfg)
	if err != nil {
		return nil, err
	}
	return &Pool[In, Out]{call: call, sched: sched}, nil
}

// Run executes jobs until Finish has been called and all jobs are done, or Drain and the
// calls in flight have ended: then it returns nil. When ctx is cancelled it stops at
// once: calls are cancelled, what did not finish is handed back, and Run returns the
// cause.
//
// When Run returns, done has been called for every job that Submit took, and every
// goroutine of the pool has ended. A second Run is an error.
func (p *Pool[In, Out]) Run(ctx context.Context) error {
	if p.started.Swap(true) {
		return errRunTwice
	}
	return p.sched.run(ctx)
}

// Submit adds a job to the pool. It blocks while the queue is full, see
// Config.QueueLimit, and may be called before Run. An error means that the job was not
// taken and done will not be called: ErrStopped, or the cause of ctx, which governs
// Submit only, not the job.
//
// Jobs start in the order in which Submit took them. Done is called exactly once, on the
// pool's own goroutine: no attempt starts until it returns. So it must not block, and must
// not call Submit, which may block until that very goroutine makes room; Drain and Stats
// are fine.
func (p *Pool[In, Out]) Submit(ctx context.Context, in In, done func(Result[In, Out])) error {
	return p.sched.inbox.submit(ctx, p.task(in, done))
}

// Add is Submit without blocking: it takes the job even if the queue is full, so callers
// check [Pool.Room] first. The only error is ErrStopped.
func (p *Pool[In, Out]) Add(in In, done func(Result[In, Out])) error {
	return p.sched.inbox.add(p.task(in, done))
}

// Room returns how many more new jobs the pool can make use of now, so that no slot stays
// empty while the caller makes another job ready. That is a sixteenth of Config.Size, at
// least one, less those that are in line: the caller decides who is next as late as it
// can. It is 0 or less where none is needed, or the queue is full, and may be more as soon
// as Config.OnRoom has been called.
func (p *Pool[In, Out]) Room() int { return p.sched.inbox.room() }

func (p *Pool[In, Out]) task(in In, done func(Result[In, Out])) *task {
	j := &job[In, Out]{call: p.call, in: in, done: done}
	j.work, j.Owner = j, &j.task
	if d, ok := any(in).(interface{ Traits() Traits }); ok {
		traits := d.Traits()
		j.Key, j.Group, j.Single, j.Attempts, j.arrived = traits.Key, traits.Group, traits.Single, traits.Attempts, traits.Arrived
	}
	return &j.task
}

// Wake makes the pool check again whether an attempt may go: see Config.Unkept.
func (p *Pool[In, Out]) Wake() { p.sched.inbox.signal() }

// Finish makes Run return once every job is done, and returns at once. Submit takes no
// more jobs. Jobs that wait for capacity, a retry or the end of an outage are waited for,
// whatever time that takes; Drain ends that.
func (p *Pool[In, Out]) Finish() { p.sched.inbox.finish() }

// Drain makes the pool stop softly, and returns at once. Submit takes no more jobs. No
// attempt starts: waiting jobs, those in backoff too, are handed back with ErrHandedBack
// and class Cancelled. Calls in flight finish, a job whose verdict calls for another
// attempt is handed back, and then Run returns.
func (p *Pool[In, Out]) Drain() { p.sched.inbox.stop() }

// Recall hands back the waiting jobs, those in backoff too, whose In is stale, with
// ErrHandedBack and class Cancelled, and returns at once. Calls in flight go on. Stale is
// called on the pool's own goroutine and must not block.
func (p *Pool[In, Out]) Recall(stale func(In) bool) {
	p.sched.inbox.recallJobs(func(t *task) bool { return stale(t.work.(*job[In, Out]).in) })
}

// ExecuteBatch submits ins in their order, waits for all and returns their results in
// that same order, one for each. Run must be running. A failed job is no error of the
// batch: see each Result's Err.
//
// If the pool stops before it has taken them all, the rest are marked as handed back, and
// the error is ErrStopped. If ctx is cancelled the results are nil and the error is its
// cause; jobs taken by then still run to their end.
func (p *Pool[In, Out]) ExecuteBatch(ctx context.Context, ins []In) ([]Result[In, Out], error) {
	results := make([]Result[In, Out], len(ins))
	finished := make(chan struct{}, len(ins)) // with room for all, so that no callback blocks
	var stopped error
	for i, in := range ins {
		done := func(r Result[In, Out]) {
			results[i] = r
			finished <- struct{}{}
		}
		err := p.Submit(ctx, in, done)
		if errors.Is(err, ErrStopped) { // and so will the rest
			stopped = err
			done(Result[In, Out]{In: in, Err: ErrHandedBack, Class: Cancelled})
		} else if err != nil {
			return nil, err
		}
	}
	for range ins {
		select {
		case <-finished:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return results, stopped
}

// Stats returns the pool's statistics as of now.
func (p *Pool[In, Out]) Stats() Stats { return p.sched.shown.now() }

// job is a task with its types.
type job[In, Out any] struct {
	task
	call Func[In, Out]
	in   In
	out  Out
	done func(Result[In, Out])
}

// Traits are what a pool makes use of if it knows them about a job. Submit asks the In of
// a job for them, by a method Traits() Traits, if it has one. The zero value is a job with
// nothing special about it.
type Traits struct {
	// Arrived is when the job came, if it has waited before it entered the pool:
	// Config.OutageHold counts from then.
	Arrived time.Time
	// Group is shared by jobs that may fail through one cause of their own, such as the
	// calls for one row. An outage or wrong settings are suspected only where jobs of
	// different groups fail, unless no other group is left. Groups are compared by ==. A
	// job with a nil Group is a group of its own.
	Group any
	// Key is shared by jobs that may be refused for one cause of their own, such as the
	// calls for one customer. Once the server has refused a job of a key far more often
	// than others, the jobs of that key wait without slowing down the rest. A job with an
	// empty Key is refused by itself.
	Key string
	// Single makes the job one attempt. Whatever the verdict, it is the job's result, and
	// to retry is up to the caller. Single attempts don't pause the pool, and while it is
	// paused they end at once, with ErrPaused.
	Single bool
	// Attempts is the job's own number of attempts, in place of [RetryConfig.MaxAttempts].
	// A job with 0 has none of its own.
	Attempts int
}

// Weighted is what a job's In may implement where attempts weigh differently, for gates and
// for the comparison of jobs that are refused. Without it every attempt weighs 1. A negative
// weight counts as 0. The pool's goroutine calls Weight before an attempt at the server and
// after it; it must not block.
type Weighted interface {
	Weight(server int) int64
}

func (j *job[In, Out]) weight(server int) int64 {
	if w, ok := any(j.in).(Weighted); ok {
		return max(0, w.Weight(server))
	}
	return 1
}

func (j *job[In, Out]) attempt(ctx context.Context, a Attempt) (v Verdict) {
	j.out, v = j.call(ctx, j.in, a)
	return v
}

func (j *job[In, Out]) finish(err error, class Class, finished time.Time, stats Stats) {
	j.done(Result[In, Out]{
		In:              j.in,
		Out:             j.out,
		Err:             err,
		Class:           class,
		Attempts:        j.att.Number - j.att.CapacityRetries,
		CapacityRetries: j.att.CapacityRetries,
		Queued:          j.att.Queued,
		Started:         j.started,
		Finished:        finished,
		Stats:           stats,
	})
}
