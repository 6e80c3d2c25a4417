package pool

import (
	"fmt"
	"time"
)

// falseAlarmProbes is the most probes, the successful one included, of an outage that may have been a false alarm: 3 s.
const falseAlarmProbes = 4

// holdCheck is how often the jobs that an outage holds are looked through for those held too long.
const holdCheck = time.Second

// out reports whether the server is in an outage.
func (v *server) out() bool { return v.breaker.isOpen() }

// openBreaker opens the breaker of a server. Its failures in doubt no longer count against the jobs that met them:
// these wait, and lose no attempt.
func (s *scheduler) openBreaker(at int, err error) {
	v := &s.servers[at]
	since := v.health.since
	lost := s.acquit(v)
	v.breaker = breaker{
		Pause:  Pause{Kind: Outage, Err: err, Since: since, Next: s.tick.Add(firstProbeWait), Server: at, Lost: lost},
		opened: s.tick, wait: firstProbeWait, patience: v.health.callTime, round: s.probes, voided: v.breaker.voided,
	}
	v.breaker.noteAbsent(v.health.absent, s.tick)
	v.checked = s.tick
	if at > 0 {
		s.returnToFirst(v)
	}
	s.delayAgain()
	s.showPause()
}

// returnToFirst moves the jobs that wait at a fallback back to the first server, which may have recovered long ago.
func (s *scheduler) returnToFirst(v *server) {
	here := func(t *task) bool { return &s.servers[t.server] == v }
	for _, t := range append(v.ready.remove(here), s.delayed.remove(here)...) {
		s.moveTo(t, 0)
		s.servers[0].ready.push(t)
	}
}

// closeBreaker closes the breaker of a server. An outage of a few probes may have been a false alarm, caused by
// adjacent jobs that always fail: in a sequential pool, which has no others in flight, those that fail again cause no
// further outage, else one would follow the other.
func (s *scheduler) closeBreaker(at int, success bool) {
	if b := &s.servers[at].breaker; success && s.cfg.Size == 1 && b.Probes <= falseAlarmProbes {
		for _, t := range b.voided {
			t.suspect = true
		}
	}
	s.servers[at].breaker = breaker{}
	s.servers[at].law.Restart(s.tick)
	s.delayAgain()
	s.showPause()
}

// settleOutage acts on the verdict on t while the server that it called is out. The breaker closes with the first
// answer of a healthy server to a probe, or to a call that went after the first failure; one that went before may have
// been served before it.
func (s *scheduler) settleOutage(t *task) {
	b, v := &s.servers[t.att.Server].breaker, &t.verdict
	probe := t.att.Probe && !t.att.Dispatched.Before(b.opened)
	if t == b.probe {
		b.probe = nil
	}
	switch {
	case v.void() || v.Class == Cancelled || isPanic(v.Err):
		if probe {
			b.Next = s.tick // it is no evidence
		}
	case v.inDoubt():
		if probe {
			b.Err, b.unreached = v.Err, v.Origin == OfNetwork
			b.noteAbsent(v.Absent && !s.servers[t.att.Server].health.proven, s.tick)
		}
		if !v.Unsent {
			b.Lost++
		}
	case probe || v.Class == OK && t.att.Dispatched.After(b.Since):
		s.closeBreaker(t.att.Server, v.Class == OK)
	}
}

// noteAbsent records whether nothing listens at the server that is out.
func (b *breaker) noteAbsent(absent bool, now time.Time) {
	switch {
	case !absent:
		b.Absent = time.Time{}
	case b.Absent.IsZero():
		b.Absent = now
	}
}

// absentSince returns since when nothing has listened at any of the servers; zero: something does, or did.
func (s *scheduler) absentSince() (since time.Time) {
	for i := range s.servers {
		absent := s.servers[i].breaker.Absent
		if absent.IsZero() {
			return absent
		}
		since = later(since, absent)
	}
	return since
}

// stuckSince returns since when outages leave a job that waits at a server nowhere to go; zero: it has somewhere.
func (s *scheduler) stuckSince(at int) (since time.Time) {
	for i := at; i < len(s.servers); i++ {
		v := &s.servers[i]
		switch {
		case v.out():
			since = later(since, v.breaker.Since)
		case i > at && v.shut.After(s.tick):
			since = later(since, v.shut.Add(-s.cfg.ProbeInterval)) // see skipServer
		default:
			return time.Time{}
		}
		if !s.passed(i) {
			break
		}
	}
	return since
}

// stuck reports whether the jobs of the first server have nowhere to go.
func (s *scheduler) stuck() bool { return !s.stuckSince(0).IsZero() }

// endHolds fails the jobs that an outage has held for Config.OutageHold.
func (s *scheduler) endHolds() {
	if s.halted() {
		return
	}
	for i := range s.servers {
		v := &s.servers[i]
		if s.cfg.OutageHold == 0 || s.tick.Before(v.checked.Add(holdCheck)) {
			continue
		}
		since := s.stuckSince(i)
		if since.IsZero() {
			continue
		}
		v.checked = s.tick
		over := func(t *task) bool {
			return t.server == i && s.tick.Sub(later(since, t.arrived)) >= s.cfg.OutageHold
		}
		for _, t := range s.takeOut(over) {
			s.vacate(t)
			s.finish(t, fmt.Errorf("%w for %v: %w", ErrOutage, s.cfg.OutageHold, v.breaker.Err), Transient, s.tick)
		}
	}
}

// outageDue returns the instant at which the scheduler must look at an outage again; zero: none by itself.
func (s *scheduler) outageDue() (at time.Time) {
	for i := range s.servers {
		v := &s.servers[i]
		if v.health.judgeAt.After(s.tick) {
			at = sooner(at, v.health.judgeAt)
		}
		if !v.out() {
			continue
		}
		if next := v.breaker.next(); next.After(s.tick) {
			at = sooner(at, next)
		}
		if pass := s.passable(i); pass.After(s.tick) {
			at = sooner(at, pass)
		}
		if s.cfg.OutageHold > 0 && !s.stuckSince(i).IsZero() {
			at = sooner(at, v.checked.Add(holdCheck))
		}
	}
	return at
}

// Shortages. Where this machine has no descriptor, port or buffer left, the calls in flight are as many as it can bear:
// no more go until some end, and one more is tried from time to time. With no call in flight none will release what is
// missing, so the pool pauses.

// shortageGrowth is how often one more call in flight is allowed. It is allowed even where fewer are wanted, else a
// shortage that is long over would be reported until that many are.
const shortageGrowth = 5 * time.Second

// shortage bounds the calls in flight. Its zero value does not.
type shortage struct {
	room  int       // most calls in flight, at least 1; 0: no shortage
	grown time.Time // when room last changed
}

// limitCalls acts on a verdict that this machine was short of something for t, which keeps its place and its attempts.
func (s *scheduler) limitCalls(t *task) {
	s.putBack(t)
	begins := s.shortage.room == 0
	s.shortage = shortage{room: max(1, s.counts.InFlight), grown: s.tick}
	s.counts.Shortage = t.verdict.Err
	if begins {
		s.cfg.OnShortage(t.verdict.Err)
	}
	if s.counts.InFlight == 0 || s.pause.Kind == Shortage {
		s.pauseAll(Shortage, t.att.Server, t.verdict.Err, t)
	}
}

// slots returns how many calls may be in flight.
func (s *scheduler) slots() int {
	h := &s.shortage
	if h.room == 0 {
		return s.cfg.Size
	}
	if s.tick.Sub(h.grown) >= shortageGrowth {
		h.room, h.grown = h.room+1, s.tick
	}
	if h.room >= s.cfg.Size {
		s.endShortage()
		return s.cfg.Size
	}
	return h.room
}

func (s *scheduler) endShortage() {
	if s.shortage.room == 0 {
		return
	}
	s.shortage, s.counts.Shortage = shortage{}, nil
	s.cfg.OnShortage(nil)
}
