package pool

import (
	"fmt"
	"time"
)

// again puts t in line for another attempt, not before wait has passed.
func (s *scheduler) again(t *task, wait time.Duration) {
	s.inbox.occupy(t)
	t.ready = s.tick.Add(wait)
	s.delay(t) // even without a wait: release checks the deadline
}

// putBack puts t in line for another attempt at once: the last one does not count.
func (s *scheduler) putBack(t *task) {
	s.inbox.occupy(t)
	s.servers[t.server].ready.push(t)
}

// delay puts t among the delayed tasks. While the pool is paused the deadlines stand still, and jobs pass no server.
func (s *scheduler) delay(t *task) {
	t.wake = t.ready
	if !t.deadline.IsZero() && !s.held() {
		t.wake = sooner(t.wake, t.deadline.Add(s.heldFor))
	}
	if pass := s.passable(t.server); t.verdict.Class == Capacity && !pass.IsZero() && !s.held() {
		t.wake = sooner(t.wake, pass)
	}
	s.delayed.push(t)
}

// delayAgain recomputes when to look at the delayed tasks, because a pause has begun or ended.
func (s *scheduler) delayAgain() {
	tasks := s.delayed.tasks
	s.delayed.tasks = nil
	for _, t := range tasks {
		s.delay(t)
	}
}

// release moves delayed tasks whose time has come to those that are ready, and fails those that are past their
// deadline.
func (s *scheduler) release() {
	for t := s.delayed.first(); t != nil && !t.wake.After(s.tick); t = s.delayed.first() {
		switch t = s.delayed.pop(); {
		case s.expired(t):
			s.expire(t)
		case t.ready.After(s.tick) && t.verdict.Class == Capacity && s.passed(t.server):
			// Its wait is longer than it has to stay at this server.
			s.moveTo(t, t.server+1)
			s.servers[t.server].ready.push(t)
		case t.doubt.parked && !t.ready.After(s.tick):
			s.unpark(t)
		case !t.ready.After(s.tick) && !s.held() && s.awaitsWitness(t):
			t.ready = s.tick.Add(witnessStep)
			s.delay(t)
		case t.ready.After(s.tick): // woken for what has been postponed since: the deadline by a pause, or the fallback
			s.delay(t)
		default:
			s.servers[t.server].ready.push(t)
		}
	}
	// Jobs have their indexes in the order in which they start, so the oldest has the first deadline.
	for i := range s.servers {
		ready := &s.servers[i].ready
		for t := ready.first(); t != nil && s.expired(t); t = ready.first() {
			s.expire(ready.pop())
		}
	}
}

// expired reports whether t is past its deadline, which is kept in running time.
func (s *scheduler) expired(t *task) bool {
	return !t.deadline.IsZero() && !s.held() && !s.running().Before(t.deadline)
}

// running is the present instant in running time: as if there had been no pause.
func (s *scheduler) running() time.Time {
	if s.held() {
		return s.heldSince.Add(-s.heldFor)
	}
	return s.tick.Add(-s.heldFor)
}

func (s *scheduler) expire(t *task) {
	s.vacate(t)
	err := fmt.Errorf("%w after %v: %w", ErrRowTimeout, s.cfg.RowTimeout, t.verdict.Err)
	s.finish(t, err, t.verdict.Class, s.tick)
}

// due returns the instant at which a job becomes ready or expires; zero: none will by itself.
func (s *scheduler) due() (at time.Time) {
	if s.paused() && !s.pause.mayProbe(s.tick) {
		return s.pause.next()
	}
	if t := s.delayed.first(); t != nil {
		at = t.wake
	}
	if s.paused() {
		return at
	}
	at = sooner(at, s.outageDue())
	if h := &s.shortage; h.room > 0 {
		at = sooner(at, h.grown.Add(shortageGrowth))
	}
	for i := range s.servers {
		if t := s.servers[i].ready.first(); t != nil && !t.deadline.IsZero() && !s.held() {
			at = sooner(at, t.deadline.Add(s.heldFor))
		}
	}
	return at
}

// handBack returns the waiting jobs that match unfinished.
func (s *scheduler) handBack(match func(*task) bool) {
	for _, t := range s.takeOut(match) {
		s.vacate(t)
		s.finish(t, ErrHandedBack, Cancelled, s.tick)
	}
}

// takeOut removes the waiting jobs that match, and returns them.
func (s *scheduler) takeOut(match func(*task) bool) []*task {
	jobs := append(s.fresh.remove(match), s.delayed.remove(match)...)
	for i := range s.servers {
		jobs = append(jobs, s.servers[i].ready.remove(match)...)
	}
	return jobs
}

// vacate records that a job waits no longer.
func (s *scheduler) vacate(t *task) {
	s.inbox.vacate(t)
	s.vacated = true
}

// waiting counts the jobs that wait for an attempt.
func (s *scheduler) waiting() int {
	n := s.fresh.size + s.fresh.singles.size + len(s.delayed.tasks)
	for i := range s.servers {
		n += len(s.servers[i].ready.tasks)
	}
	return n
}

// sooner returns the earlier of two instants, of which a zero one is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
