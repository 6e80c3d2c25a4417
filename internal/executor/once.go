package executor

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/llm-stage/stage/pool"
)

// prompt is one attempt at a prompt of a batched request. It waits in the queue beside the
// rows, then goes through the pool as a job of its own.
type prompt struct {
	weight  func() int64
	attempt func(context.Context, pool.Attempt) pool.Verdict
	ended   chan error  // takes the one error of the attempt
	givenUp atomic.Bool // by its caller
}

// promptTurns lets prompts take their turns among the rows. It is safe for concurrent use.
type promptTurns struct {
	e      *Executor
	paused atomic.Bool // the pool is paused, and refuses prompts at once
}

// CallOnce makes one attempt in its turn among the rows, and returns the error of its
// verdict. Retrying is up to the caller. The attempt shares slots, laws, gates and
// statistics with the rows, and weight estimates its tokens. While the pool is paused the
// error wraps [pool.ErrPaused], at once.
//
// Ctx governs only the wait for the turn: when it ends before that, the error is its cause
// and no attempt is made. An attempt that has begun is waited for. It ends early only with
// the pool's own context.
func (e *Executor) CallOnce(ctx context.Context, weight func() int64, attempt func(context.Context, pool.Attempt) pool.Verdict) error {
	p := &prompt{weight: weight, attempt: attempt, ended: make(chan error, 1)}
	e.backlog.addPrompt(p)
	select {
	case err := <-p.ended:
		return err
	case <-ctx.Done():
	}
	p.givenUp.Store(true)
	if len(e.backlog.queue.removePrompts(func(other *prompt) bool { return other == p })) > 0 {
		return context.Cause(ctx)
	}
	e.prompts.recall(p)
	err := <-p.ended
	if errors.Is(err, pool.ErrHandedBack) {
		return context.Cause(ctx)
	}
	return err
}

// followPauses makes prompts that wait in the queue be refused as soon as the pool pauses:
// their callers must not wait for the end of the pause.
func (d *promptTurns) followPauses(cfg *pool.Config) {
	onPause, onResume := cfg.OnPause, cfg.OnResume
	cfg.OnPause = func(p pool.Pause) {
		d.paused.Store(true)
		d.e.backlog.wake()
		if onPause != nil {
			onPause(p)
		}
	}
	cfg.OnResume = func(p pool.Pause) {
		d.paused.Store(false)
		if onResume != nil {
			onResume(p)
		}
	}
}

// refuse has the pool refuse the prompts in the queue while it is paused.
func (d *promptTurns) refuse() {
	if !d.paused.Load() {
		return
	}
	for _, p := range d.e.backlog.queue.removePrompts(func(*prompt) bool { return true }) {
		d.submit(p)
	}
}

// submit hands a prompt to the pool.
func (d *promptTurns) submit(p *prompt) {
	if err := d.e.Pool.Add(&job{prompt: p}, d.e.done); err != nil {
		p.ended <- err
		return
	}
	// CallOnce may have given up between the queue and here:
	//
	//  1. Run takes the prompt out of the queue.
	//  2. CallOnce sets givenUp, finds the prompt in the queue no more, and recalls it.
	//  3. The pool knows no such job yet.
	//  4. Run adds the job.
	//
	// So Run, which comes second, recalls the job. Otherwise the caller would wait for a
	// turn that may be minutes away.
	if p.givenUp.Load() {
		d.recall(p)
	}
}

// recall has the pool hand back a prompt that still waits there.
func (d *promptTurns) recall(p *prompt) {
	d.e.Pool.Recall(func(j *job) bool { return j.prompt == p })
}
