package pool

import (
	"context"
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/hold"
)

// Wait is why a job has no answer yet.
type Wait struct {
	// Known says that a job that matches waits in the pool. Otherwise Hold is what a new
	// job would wait for.
	Known bool
	// Hold has the kind, who or what it is by, why, since when and until when. While the
	// pool is paused the kind is one of those that pause all jobs.
	Hold hold.Hold
	// Server is the one that the job waits for: 0 for the first, n for the n-th fallback.
	Server int
}

// question asks the scheduler why a job waits.
type question struct {
	match  func(*task) bool
	answer chan<- Wait // has room for it
}

// Waits returns why a job waits whose In matches, and where none does, what a new job would
// wait for: see [Wait.Known]. It waits for the pool's own goroutine, which answers at the
// end of its turn, and reports false if ctx ends before. Match is called on that goroutine
// and must not block.
func (p *Pool[In, Out]) Waits(ctx context.Context, match func(In) bool) (w Wait, ok bool) {
	answer := make(chan Wait, 1)
	p.sched.inbox.ask(question{func(t *task) bool {
		j, is := t.work.(*job[In, Out])
		return is && match(j.in)
	}, answer})
	select {
	case w = <-answer:
		return w, true
	case <-ctx.Done():
		return w, false
	}
}

// ask passes a question to the scheduler.
func (b *inbox) ask(q question) {
	b.mu.Lock()
	b.questions = append(b.questions, q)
	b.mu.Unlock()
	b.signal()
}

// waits returns why a job waits that matches.
func (s *scheduler) waits(match func(*task) bool) Wait {
	for _, t := range s.queue.delayed.tasks {
		if match(t) {
			return known(s.delayedWait(t))
		}
	}
	for i := range s.queue.ready {
		for _, t := range s.queue.ready[i].tasks {
			if match(t) {
				return known(s.readyWait(i, t.started))
			}
		}
	}
	for t := s.queue.fresh.head; t != nil; t = t.next {
		if match(t) {
			return known(s.readyWait(0, time.Time{}))
		}
	}
	w := s.readyWait(0, time.Time{})
	if w.Hold.Kind == hold.Turn && s.inbox.full() {
		w.Hold.Why = "the pool's queue is full of jobs that wait, such as for their next call"
	}
	return w
}

func known(w Wait) Wait {
	w.Known = true
	return w
}

// delayedWait returns why t waits, whose next attempt is not due yet.
func (s *scheduler) delayedWait(t *task) Wait {
	if s.pauses.any() {
		return s.pauses.present.wait()
	}
	h := hold.Hold{Kind: hold.Retry, Why: textOf(t.verdict.Err), Since: t.ended, Next: t.ready, Err: t.verdict.Err}
	switch {
	case t.Awaits():
		h.Kind = hold.Doubt
	case t.needsWitness:
		h.Kind, h.Next = hold.Doubt, t.until
	case t.verdict.Class == Capacity && t.RefusedWait(s.cfg.ProbeInterval) > 0:
		h.Kind = hold.SingledOut
	case t.verdict.Class == Capacity:
		h.Kind = hold.Capacity
	}
	return Wait{Hold: h, Server: t.Server()}
}

// readyWait returns why a job that may go to a server still waits.
func (s *scheduler) readyWait(at int, since time.Time) Wait {
	if s.pauses.any() {
		return s.pauses.present.wait()
	}
	var h hold.Hold
	switch {
	case !s.isFull():
		h = s.route.servers[at].wait(s.tick)
	case s.shortage.isOn():
		h = hold.Hold{Kind: hold.Shortage, Why: textOf(s.shortage.err), Err: s.shortage.err}
	default:
		h.Kind = hold.Slots
		if n := s.cfg.Unkept(); n > 0 {
			h.By = fmt.Sprintf("%d replies that are not kept yet", n)
		}
	}
	if h.Since.IsZero() {
		h.Since = since
	}
	return Wait{Hold: h, Server: at}
}

// wait returns the wait of a job that the pause holds. It names no culprit, which the pool
// does not know.
func (p Pause) wait() Wait {
	kind := hold.Other
	switch p.Kind {
	case Operator:
		kind = hold.Operator
	case WrongSettings:
		kind = hold.Settings
	case Outage, Shortage:
		kind = hold.Outage
	case FatalError, NotPaused:
	}
	return Wait{Hold: hold.Hold{Kind: kind, Why: textOf(p.Err), Since: p.Since, Next: p.Next, Err: p.Err}, Server: p.Server}
}

// textOf returns the text of an error, or "" for nil.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
