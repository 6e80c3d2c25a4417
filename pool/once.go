package pool

import (
	"context"
	"errors"
	"time"
)

// ErrPaused is in the error of a single attempt that was not made because the pool is
// paused; the error also wraps the cause of the pause, and ErrOutage where the pause may
// end by itself.
var ErrPaused = errors.New("pool is paused")

// Once is a second entrance to a pool, for jobs of another type, each of which is one
// attempt: whatever the verdict, it is the job's result, and retrying is up to the
// caller. Such attempts share slots, laws, gates and statistics with the jobs of the
// pool. Each starts after as many new jobs as were in line when it arrived, whatever
// their lanes.
//
// They never block the other jobs: none waits in the pool for another attempt, none takes
// a place of Config.QueueLimit, and a fatal verdict does not pause the pool. While the
// pool is paused they end at once, with ErrPaused. The caller bounds how many there are
// at a time; with up to Config.Size of them new jobs still get at least their share by
// count. Make it with [NewOnce]. All methods are safe for concurrent use.
type Once[In, Out any] struct {
	call  Func[In, Out]
	inbox *inbox
}

// NewOnce returns an entrance to p for attempts that call makes. It may be called before
// p runs.
func NewOnce[In, Out, PoolIn, PoolOut any](p *Pool[PoolIn, PoolOut], call Func[In, Out]) *Once[In, Out] {
	return &Once[In, Out]{call: call, inbox: p.sched.inbox}
}

// Do makes one attempt at in and waits for its end. The pool must run, or have run.
// Errors are in the Result: the verdict's error, or one that wraps ErrStopped,
// ErrHandedBack or ErrPaused where no attempt was made.
//
// Ctx governs only the wait for the attempt's turn: when it ends before that, the Result
// holds its cause and class Cancelled, and no attempt is made. Do waits for an attempt
// that has begun; that ends early only with the pool's own context.
func (o *Once[In, Out]) Do(ctx context.Context, in In) Result[In, Out] {
	var result Result[In, Out]
	finished := make(chan struct{})
	j := &job[In, Out]{in: in}
	j.call = func(poolCtx context.Context, in In, a Attempt) (Out, Verdict) {
		if j.claimed.Swap(true) {
			var none Out
			return none, Verdict{Class: Cancelled, Err: context.Cause(ctx), Unsent: true}
		}
		return o.call(poolCtx, in, a)
	}
	j.done = func(r Result[In, Out]) {
		result = r
		close(finished)
	}
	j.work, j.Owner, j.Single = j, &j.task, true
	if err := o.inbox.add(&j.task); err != nil {
		return Result[In, Out]{In: in, Err: err, Class: Cancelled, Finished: time.Now()}
	}
	select {
	case <-finished:
	case <-ctx.Done():
		if !j.claimed.Swap(true) {
			o.inbox.withdrawSingle()
			return Result[In, Out]{In: in, Err: context.Cause(ctx), Class: Cancelled, Finished: time.Now()}
		}
		<-finished
	}
	return result
}

// withdrawn reports whether the caller has given up a single attempt that waits.
func (t *task) withdrawn() bool { return t.claimed.Load() }
