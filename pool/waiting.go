package pool

import (
	"fmt"
	"time"
)

// again puts t in line for another attempt, not before wait has passed.
func (s *scheduler) again(t *task, wait time.Duration) {
	s.inbox.occupy()
	t.ready = s.tick.Add(wait)
	s.delay(t) // even without a wait: release sees to the deadline
}

func (s *scheduler) delay(t *task) {
	t.wake = t.ready
	if !t.deadline.IsZero() {
		t.wake = sooner(t.wake, t.deadline.Add(s.pausedFor))
	}
	if pass := s.passable(t.server); t.verdict.Class == Capacity && !pass.IsZero() {
		t.wake = sooner(t.wake, pass)
	}
	s.delayed.push(t)
}

// release moves delayed tasks whose time has come to those that are ready, and fails those that are past their
// deadline. While the pool is paused the deadlines stand still, and nothing needs to be ready.
func (s *scheduler) release() {
	if s.probe != nil {
		return
	}
	for t := s.delayed.first(); t != nil && !t.wake.After(s.tick); t = s.delayed.first() {
		switch t = s.delayed.pop(); {
		case s.expired(t):
			s.expire(t)
		case t.ready.After(s.tick) && t.verdict.Class == Capacity && s.passed(t.server):
			// Told to wait for longer than it has to stay.
			t.server++
			s.servers[t.server].ready.push(t)
		case t.ready.After(s.tick): // woken for what has been put off since: the deadline by a pause, or the fallback
			s.delay(t)
		default:
			s.servers[t.server].ready.push(t)
		}
	}
	// Jobs start in the order of their indexes, so the oldest has the first deadline.
	for i := range s.servers {
		ready := &s.servers[i].ready
		for t := ready.first(); t != nil && s.expired(t); t = ready.first() {
			s.expire(ready.pop())
		}
	}
}

// expired reports whether t is past its deadline, which is kept in running time: as if there had been no pause.
func (s *scheduler) expired(t *task) bool {
	return !t.deadline.IsZero() && !s.tick.Add(-s.pausedFor).Before(t.deadline)
}

func (s *scheduler) expire(t *task) {
	s.inbox.vacate()
	err := fmt.Errorf("%w after %v: %w", ErrRowTimeout, s.cfg.RowTimeout, t.verdict.Err)
	s.finish(t, err, t.verdict.Class, s.tick)
}

// due returns the instant at which a job becomes ready or expires; zero: none will by itself.
func (s *scheduler) due() (at time.Time) {
	if s.probe != nil {
		if !s.probing && s.probeAt.After(s.tick) {
			at = s.probeAt
		}
		return at
	}
	if t := s.delayed.first(); t != nil {
		at = t.wake
	}
	for i := range s.servers {
		if t := s.servers[i].ready.first(); t != nil && !t.deadline.IsZero() {
			at = sooner(at, t.deadline.Add(s.pausedFor))
		}
	}
	return at
}

// pause holds everything because of the fatal verdict on t. Others whose calls are in the air may bring one too: they
// wait behind the first.
func (s *scheduler) pause(t *task) {
	s.inbox.occupy()
	if s.probe == nil {
		s.probe, s.pausedAt, s.pausedBy = t, s.tick, t.verdict.Err
		s.turnAway()
		s.cfg.OnPause(t.verdict.Err)
	}
	if t != s.probe {
		s.servers[t.server].ready.push(t)
		return
	}
	s.probing, s.probeAt = false, s.tick.Add(s.cfg.ProbeInterval)
	s.pausedBy = t.verdict.Err
	s.counts.Paused = s.pausedBy.Error()
}

func (s *scheduler) resume() {
	s.probe, s.probing = nil, false
	s.pausedFor += s.tick.Sub(s.pausedAt)
	s.counts.Paused = ""
	s.cfg.OnResume()
}

// handBackAll gives up all jobs that wait.
func (s *scheduler) handBackAll() {
	jobs := s.delayed.tasks
	s.delayed.tasks = nil
	for i := range s.servers {
		ready := &s.servers[i].ready
		jobs, ready.tasks = append(jobs, ready.tasks...), nil
	}
	if s.probe != nil && !s.probing {
		jobs = append(jobs, s.probe)
		s.probe = nil
	}
	for s.fresh.head != nil {
		jobs = append(jobs, s.fresh.pop())
	}
	for _, t := range jobs {
		s.finish(t, ErrHandedBack, Cancelled, s.tick)
	}
}

// handBack gives up the waiting jobs that are stale. The one that probes for a paused pool stays: it is the reason of the
// pause.
func (s *scheduler) handBack(stale func(*task) bool) {
	var jobs []*task
	var fresh fifo
	for s.fresh.head != nil {
		if t := s.fresh.pop(); stale(t) {
			jobs = append(jobs, t)
		} else {
			fresh.push(t)
		}
	}
	s.fresh = fresh
	jobs = append(jobs, s.delayed.remove(stale)...)
	for i := range s.servers {
		jobs = append(jobs, s.servers[i].ready.remove(stale)...)
	}
	for _, t := range jobs {
		s.inbox.vacate()
		s.finish(t, ErrHandedBack, Cancelled, s.tick)
	}
}

// waiting counts the jobs that wait for an attempt.
func (s *scheduler) waiting() int {
	n := s.fresh.size + len(s.delayed.tasks)
	for i := range s.servers {
		n += len(s.servers[i].ready.tasks)
	}
	if s.probe != nil && !s.probing {
		n++
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
