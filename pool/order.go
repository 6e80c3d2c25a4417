package pool

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/pool/internal/health"
)

// This file decides in which order jobs go, and when the scheduler looks at jobs that wait.

const (
	// lookEvery is how often jobs are looked at that wait for what no event announces:
	// that no other job is left to settle the doubt about their failures, or that an
	// outage has held them too long.
	lookEvery = time.Second
	// witnessStep is how often it is looked whether another job has succeeded, for one that
	// needs that, see health.WitnessWait.
	witnessStep = 50 * time.Millisecond
)

// first returns the task whose turn it is and the server that it goes to. If there is
// none, next is the instant at which there will be one, zero if that depends on an event.
//
// At each server the oldest waiting task goes first, and among those the oldest that has
// a server to go to.
func (s *scheduler) first() (t *task, at int, next time.Time) {
	t, at, next = s.probe()
	if t != nil || s.pauses.own() {
		return t, at, next
	}
	for i := range s.route.servers {
		s.route.servers[i].skip = false
	}
	for t = s.oldest(); t != nil; t = s.oldest() {
		at, when := s.route.admits(s.tick, t)
		if at >= 0 {
			return t, at, time.Time{}
		}
		next = sooner(next, when)
	}
	return nil, 0, next
}

// oldest returns the task with the lowest index among those whose server is not skipped,
// or nil. While retries are refused in vain, a task that was refused less often may go
// before it, see refusal.go of package health.
func (s *scheduler) oldest() (t *task) {
	servers := s.route.servers
	for i := range servers {
		if servers[i].skip {
			continue
		}
		head := s.queue.ready[i].first()
		if servers[i].RetriesInVain() {
			head = s.queue.leastRefused(i)
		}
		if head != nil && (t == nil || older(head, t)) {
			t = head
		}
	}
	mayStart := t == nil || t.Server() == 0 && servers[0].Yields()
	if mayStart && !servers[0].skip && !s.mustNotOvertake() {
		if next := s.queue.fresh.head; next != nil { // younger than all that have started
			return next
		}
	}
	return t
}

// mustNotOvertake reports whether no new job may start: in a sequential pool, while one
// that has started waits.
func (s *scheduler) mustNotOvertake() bool {
	return s.cfg.Size == 1 && s.queue.started() > s.health.Awaiting()
}

// probe returns the job that probes a server now, and the server. If there is none, next
// is the instant at which there will be one, zero if that depends on an event or on time
// alone, see due.
func (s *scheduler) probe() (t *task, at int, next time.Time) {
	for at := range s.route.servers {
		t := s.probeOf(at)
		if t == nil {
			continue
		}
		when := s.route.servers[at].next(s.tick, t, at)
		if !when.After(s.tick) {
			return t, at, time.Time{}
		}
		next = sooner(next, when)
		if s.pauses.own() {
			// The first server takes precedence, as its errors pause the pool: an answer
			// of a fallback proves little and only beats waiting without end.
			break
		}
	}
	return nil, 0, next
}

// probeOf returns the job that may probe a server at this instant, or nil: one that waits
// there, or in an outage one that may go past the servers before it.
func (s *scheduler) probeOf(at int) *task {
	b := s.breaker(at)
	if !b.IsOpen() || !b.MayProbe(s.tick) {
		return nil
	}
	t := s.prober(b, at)
	for i := at - 1; t == nil && !s.pauses.own() && i >= 0 && s.route.passed(s.tick, i); i-- {
		t = s.prober(b, i)
	}
	return t
}

// prober returns the job that probes next for a breaker, of the jobs that wait at a
// server, or nil if none waits. After a fatal verdict, and in a shortage, it is the oldest.
// Otherwise the job itself may be the problem: a new job goes first, and then the oldest
// that has not been a probe in this round, so that no job can keep the breaker open.
func (s *scheduler) prober(b *health.Breaker, at int) *task {
	ready := &s.queue.ready[at]
	if s.pauses.kind == FatalError || s.pauses.kind == Shortage {
		if t := ready.first(); t != nil {
			return t
		}
		if at > 0 || s.mustNotOvertake() {
			return nil
		}
		return s.queue.firstFresh()
	}
	var t *task
	if at == 0 { // one that has not failed is the best evidence
		t = s.queue.firstFresh()
	}
	if t == nil {
		t = ready.oldest(func(t *task) bool { return b.Fresh(&t.Job) })
	}
	if t == nil && ready.first() != nil {
		b.NewRound(s.tick)
		t = ready.first()
	}
	return t
}

// breaker returns the breaker that decides when a probe goes to a server. While the pool's
// own breaker is open, it decides for all servers.
func (s *scheduler) breaker(at int) *health.Breaker {
	if s.pauses.own() {
		return &s.pauses.breaker
	}
	return &s.route.servers[at].Outage
}

// again puts t in line for another attempt, not before wait has passed.
func (s *scheduler) again(t *task, wait time.Duration) {
	s.inbox.occupy()
	t.needsWitness, t.ready = false, s.tick.Add(wait)
	s.delay(t) // even without a wait: release checks the deadline
}

// delay puts t among the delayed tasks. While the pool is paused the deadlines stand
// still, and jobs pass no server.
func (s *scheduler) delay(t *task) {
	t.wake = sooner(t.ready, s.pauses.clock.due(t.deadline))
	if t.verdict.Class == Capacity && !s.pauses.any() {
		t.wake = sooner(t.wake, s.route.passable(s.tick, t.Server()))
	}
	s.queue.delayed.push(t)
}

// delayAgain recomputes when to look at the delayed tasks, because a pause has begun or
// ended.
func (s *scheduler) delayAgain() {
	tasks := s.queue.delayed.tasks
	s.queue.delayed.tasks = nil
	for _, t := range tasks {
		s.delay(t)
	}
}

// release takes the tasks out of the delayed ones whose time has come to be looked at, and
// fails all that are past their deadline.
func (s *scheduler) release() {
	clock, delayed := &s.pauses.clock, &s.queue.delayed
	for t := delayed.first(); t != nil && !t.wake.After(s.tick); t = delayed.first() {
		switch t = delayed.pop(); {
		case clock.past(s.tick, t.deadline):
			s.expire(t)
		case t.ready.After(s.tick):
			s.wokenEarly(t)
		default:
			s.cameDue(t)
		}
	}
	// Jobs have their indexes in the order in which they start, so the oldest has the
	// first deadline.
	for i := range s.queue.ready {
		ready := &s.queue.ready[i]
		for t := ready.first(); t != nil && clock.past(s.tick, t.deadline); t = ready.first() {
			s.expire(ready.pop())
		}
	}
}

// wokenEarly acts on t, which is in no line and must still wait for its next attempt: it
// was looked at because it might expire, or pass its server.
func (s *scheduler) wokenEarly(t *task) {
	if t.verdict.Class == Capacity && s.route.passed(s.tick, t.Server()) {
		s.health.Move(&t.Job, t.Server()+1) // its wait is longer than it has to stay at this server
		s.queue.makeReady(t)
		return
	}
	s.delay(t) // what it was woken for has been postponed since: the deadline by a pause, or the fallback
}

// cameDue acts on t, which is in no line and has waited as long as it had to. It goes on
// waiting, until t.until at most, while it needs a witness: without the success of another
// job its next failure would not count.
func (s *scheduler) cameDue(t *task) {
	switch {
	case t.Awaits():
		s.settleAwaiting(t)
	case !s.pauses.any() && s.tick.Before(t.until) && s.health.LacksWitness(&t.Job, s.others()):
		t.needsWitness, t.ready = true, s.tick.Add(witnessStep)
		s.delay(t)
	default:
		s.queue.makeReady(t)
	}
}

// settleAwaiting reconsiders t, which has used up its attempts with failures in doubt and
// is in no line.
func (s *scheduler) settleAwaiting(t *task) {
	at := t.Server()
	switch s.route.servers[at].Settle(s.tick, &t.Job, s.others()) {
	case health.Outage:
		s.queue.makeReady(t)
		s.settleDoubts()
		s.outageBegan(at)
	case health.Count:
		s.queue.vacate(t)
		s.lose(t)
	case health.Hold, health.Void:
		t.ready = s.tick.Add(lookEvery)
		s.delay(t)
	}
}

// others counts the jobs that have not ended, apart from one that is at hand and in no
// line. Single attempts count as well, as their success would be evidence, too. So does
// one job that is expected, if the queue has room for it.
//
// The caller is asked first, because a job may move from it into the inbox meanwhile:
//
//	This finds the inbox empty.
//	The caller submits its last job, and expects no other.
//	This asks the caller, and has missed the job.
//
// In the order of the code such a job is counted twice at worst.
func (s *scheduler) others() int {
	expected := s.cfg.Expected()
	n := s.inbox.submitted() + s.queue.size()
	if expected && n < s.cfg.QueueLimit {
		n++
	}
	return n + s.counts.InFlight
}

// expire fails t, which is in no line, because its RowTimeout is over.
func (s *scheduler) expire(t *task) {
	s.queue.vacate(t)
	err := fmt.Errorf("%w after %v: %w", ErrRowTimeout, s.cfg.RowTimeout, t.verdict.Err)
	s.finish(t, err, t.verdict.Class, s.tick)
}

// due returns the instant at which a job becomes ready or expires; zero means that none
// will by itself.
func (s *scheduler) due() (at time.Time) {
	own := s.pauses.own()
	if own && !s.pauses.breaker.MayProbe(s.tick) {
		return s.pauses.breaker.Due()
	}
	if t := s.queue.delayed.first(); t != nil {
		at = t.wake
	}
	if own {
		return at
	}
	at = sooner(at, s.route.due(s.tick))
	at = sooner(at, s.shortage.due())
	for i := range s.queue.ready {
		if t := s.queue.ready[i].first(); t != nil {
			at = sooner(at, s.pauses.clock.due(t.deadline))
		}
	}
	return at
}

// sooner returns the earlier of two instants. A zero instant stands for none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
