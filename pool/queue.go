package pool

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/pool/internal/health"
)

// The order in which jobs go, and where they wait until then.

const (
	// lookEvery is how often jobs are looked at that wait for what no event announces:
	// that no other job is left to settle the doubt about their failures, or that an
	// outage has held them too long.
	lookEvery = time.Second
	// witnessStep is how often a job looks for the success of another one, see
	// health.WitnessWait.
	witnessStep = 50 * time.Millisecond
)

// first returns the task whose turn it is and the server that it goes to. If there is
// none, next is the instant at which there will be one, zero if that depends on an event.
//
// At each server the oldest waiting task goes first, and among those the oldest that has
// a server to go to.
func (s *scheduler) first() (t *task, at int, next time.Time) {
	t, at, next = s.probe()
	if t != nil || s.paused() {
		return t, at, next
	}
	for i := range s.servers {
		s.servers[i].skip = false
	}
	for t = s.oldest(); t != nil; t = s.oldest() {
		at, when := s.place(t)
		if at >= 0 {
			return t, at, time.Time{}
		}
		next = sooner(next, when)
	}
	return nil, 0, next
}

// oldest returns the task with the lowest index among those whose server is not skipped,
// or nil. It is another one while retries are refused in vain, see refusal.go of package
// health.
func (s *scheduler) oldest() (t *task) {
	for i := range s.servers {
		v := &s.servers[i]
		if v.skip {
			continue
		}
		if head := v.firstReady(); head != nil && (t == nil || older(head, t)) {
			t = head
		}
	}
	mayStart := t == nil || t.Server() == 0 && s.servers[0].Yields()
	if mayStart && !s.servers[0].skip && !s.mustNotOvertake() {
		if next := s.fresh.head; next != nil { // younger than all that have started
			return next
		}
	}
	return t
}

// mustNotOvertake reports whether no new job may start: in a sequential pool, while one
// that has started waits.
func (s *scheduler) mustNotOvertake() bool {
	return s.cfg.Size == 1 && s.waiting()-s.health.Awaiting() > s.fresh.size
}

// place finds the server that an attempt at t may go to now: its own or, past those
// without capacity, a later one. If there is none it is -1; all that were considered are
// closed for the younger tasks too, and when is the instant to try again.
func (s *scheduler) place(t *task) (at int, when time.Time) {
	for i := t.Server(); i < len(s.servers); i++ {
		v := &s.servers[i]
		switch {
		case v.skip:
		case v.Out(), v.SettingsSuspected(): // only probes go there
			v.skip = true
		case v.JudgeAt().After(s.tick):
			v.skip, when = true, sooner(when, v.JudgeAt())
		default:
			next := v.next(s.tick, t, i)
			if !next.After(s.tick) {
				return i, time.Time{}
			}
			v.skip = true
			when = sooner(when, next)
		}
		pass := s.passable(i)
		if pass.IsZero() || pass.After(s.tick) {
			return -1, sooner(when, pass)
		}
	}
	return -1, when
}

// passable returns the instant from which attempts may go past server i, or zero.
func (s *scheduler) passable(i int) time.Time {
	v := &s.servers[i]
	since := v.LackingSince()
	switch {
	case i == len(s.servers)-1:
		return time.Time{}
	case v.shut.After(s.tick), v.Out() && s.cfg.FallbackAfter == 0: // as if their attempts there were used up
		return s.tick
	case s.cfg.FallbackAfter == 0 || since.IsZero():
		return time.Time{}
	default:
		return since.Add(s.cfg.FallbackAfter)
	}
}

// passed reports whether attempts may go past server i now.
func (s *scheduler) passed(i int) bool {
	at := s.passable(i)
	return !at.IsZero() && !at.After(s.tick)
}

// moveOn moves t, whose attempts at its server are used up, to the next one; behind the
// last it fails.
func (s *scheduler) moveOn(t *task) {
	i := s.nextServer(t)
	if i < 0 {
		s.finish(t, t.verdict.Err, t.verdict.Class, t.ended)
		return
	}
	s.moveTo(t, i)
	s.again(t, 0)
}

// moveTo assigns t to a server, with a fresh number of attempts.
func (s *scheduler) moveTo(t *task, i int) {
	s.health.Move(&t.Job, i)
}

// nextServer returns the next server behind that of t which is not shut; -1: there is none.
func (s *scheduler) nextServer(t *task) int {
	for i := t.Server() + 1; i < len(s.servers); i++ {
		if !s.servers[i].shut.After(s.tick) {
			return i
		}
	}
	return -1
}

// skipServer shuts the fallback that gave t a fatal verdict for a while: the pool
// continues without it.
func (s *scheduler) skipServer(t *task) {
	v := &s.servers[t.att.Server]
	v.shut, v.shutBy = s.tick.Add(s.cfg.ProbeInterval), t.verdict.Err
	if t.Server() < t.att.Server { // it was sent there for lack of capacity, and keeps waiting for that
		s.again(t, 0)
		return
	}
	s.moveOn(t)
}

// again puts t in line for another attempt, not before wait has passed.
func (s *scheduler) again(t *task, wait time.Duration) {
	s.inbox.occupy()
	t.ready = s.tick.Add(wait)
	s.delay(t) // even without a wait: release checks the deadline
}

// putBack puts t in line for another attempt at once: the last one does not count.
func (s *scheduler) putBack(t *task) {
	s.inbox.occupy()
	s.servers[t.Server()].ready.push(t)
}

// delay puts t among the delayed tasks. While the pool is paused the deadlines stand
// still, and jobs pass no server.
func (s *scheduler) delay(t *task) {
	t.wake = t.ready
	if !t.deadline.IsZero() && !s.anyPause() {
		t.wake = sooner(t.wake, t.deadline.Add(s.pausedFor))
	}
	if pass := s.passable(t.Server()); t.verdict.Class == Capacity && !pass.IsZero() && !s.anyPause() {
		t.wake = sooner(t.wake, pass)
	}
	s.delayed.push(t)
}

// delayAgain recomputes when to look at the delayed tasks, because a pause has begun or
// ended.
func (s *scheduler) delayAgain() {
	tasks := s.delayed.tasks
	s.delayed.tasks = nil
	for _, t := range tasks {
		s.delay(t)
	}
}

// release moves delayed tasks whose time has come to those that are ready, and fails
// those that are past their deadline.
func (s *scheduler) release() {
	for t := s.delayed.first(); t != nil && !t.wake.After(s.tick); t = s.delayed.first() {
		switch t = s.delayed.pop(); {
		case s.expired(t):
			s.expire(t)
		case t.ready.After(s.tick) && t.verdict.Class == Capacity && s.passed(t.Server()):
			// Its wait is longer than it has to stay at this server.
			s.moveTo(t, t.Server()+1)
			s.servers[t.Server()].ready.push(t)
		case t.Awaits() && !t.ready.After(s.tick):
			s.settleAwaiting(t)
		case !t.ready.After(s.tick) && !s.anyPause() && s.awaitsWitness(t):
			t.ready = s.tick.Add(witnessStep)
			s.delay(t)
		case t.ready.After(s.tick): // woken for what has been postponed since: the deadline by a pause, or the fallback
			s.delay(t)
		default:
			s.servers[t.Server()].ready.push(t)
		}
	}
	// Jobs have their indexes in the order in which they start, so the oldest has the
	// first deadline.
	for i := range s.servers {
		ready := &s.servers[i].ready
		for t := ready.first(); t != nil && s.expired(t); t = ready.first() {
			s.expire(ready.pop())
		}
	}
}

// awaitsWitness reports whether t, which is in no line, must keep waiting for the success
// of another job.
func (s *scheduler) awaitsWitness(t *task) bool {
	return s.tick.Before(t.until) && s.health.LacksWitness(&t.Job, s.others())
}

// settleAwaiting reconsiders t, which has used up its attempts with failures in doubt and
// is in no line.
func (s *scheduler) settleAwaiting(t *task) {
	at := t.Server()
	switch s.servers[at].Settle(s.tick, &t.Job, s.others()) {
	case health.Outage:
		s.servers[at].ready.push(t)
		s.settleDoubts()
		s.outageBegan(at)
	case health.Count:
		s.vacate(t)
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
// A job moves from the caller's queue into the inbox while this runs. It is looked for in
// the order in which it moves, so it is not missed between the two.
func (s *scheduler) others() int {
	expected := s.cfg.Expected()
	n := s.inbox.submitted() + s.waiting()
	if expected && n < s.cfg.QueueLimit {
		n++
	}
	return n + s.counts.InFlight
}

// expired reports whether t is past its deadline, which is kept in running time.
func (s *scheduler) expired(t *task) bool {
	return !t.deadline.IsZero() && !s.anyPause() && !s.running().Before(t.deadline)
}

// running is the present instant in running time: as if there had been no pause.
func (s *scheduler) running() time.Time {
	if s.anyPause() {
		return s.pauseSince.Add(-s.pausedFor)
	}
	return s.tick.Add(-s.pausedFor)
}

func (s *scheduler) expire(t *task) {
	s.vacate(t)
	err := fmt.Errorf("%w after %v: %w", ErrRowTimeout, s.cfg.RowTimeout, t.verdict.Err)
	s.finish(t, err, t.verdict.Class, s.tick)
}

// due returns the instant at which a job becomes ready or expires; zero means that none
// will by itself.
func (s *scheduler) due() (at time.Time) {
	if s.paused() && !s.pause.MayProbe(s.tick) {
		return s.pause.Due()
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
		if t := s.servers[i].ready.first(); t != nil && !t.deadline.IsZero() && !s.anyPause() {
			at = sooner(at, t.deadline.Add(s.pausedFor))
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
	s.inbox.vacate(t.started.IsZero())
	s.vacated = true
}

// waiting counts the jobs that wait for an attempt.
func (s *scheduler) waiting() int {
	n := s.fresh.size + len(s.delayed.tasks)
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
