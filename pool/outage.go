package pool

import (
	"fmt"
	"time"
)

// falseAlarmProbes is how many probes, the successful one included, an outage has at most that may have been none: 3 s.
const falseAlarmProbes = 4

// holdCheck is how often the jobs that an outage holds are looked through for those held too long.
const holdCheck = time.Second

// out reports whether the server is in an outage.
func (v *server) out() bool { return v.breaker.isOpen() }

// openBreaker opens the breaker of a server. What its failures said of the jobs that met them is void: they wait, and
// lose nothing.
func (s *scheduler) openBreaker(at int, err error) {
	v := &s.servers[at]
	since := v.health.since
	lost := s.acquit(v)
	v.breaker = breaker{
		Pause:  Pause{Kind: Outage, Err: err, Since: since, Next: s.tick.Add(firstProbeWait), Server: at, Lost: lost},
		opened: s.tick, wait: firstProbeWait, patience: v.health.callTime, round: s.probes, voided: v.breaker.voided,
	}
	v.checked = s.tick
	if at > 0 {
		s.comeBack(v)
	}
	s.delayAgain()
	s.showPause()
}

// comeBack makes the jobs that wait at a fallback wait at the first server again: it may long be back itself.
func (s *scheduler) comeBack(v *server) {
	here := func(t *task) bool { return &s.servers[t.server] == v }
	for _, t := range append(v.ready.remove(here), s.delayed.remove(here)...) {
		s.goTo(t, 0)
		s.servers[0].ready.push(t)
	}
}

// closeBreaker closes the breaker of a server. An outage of a few probes may have been none, but jobs beside each other
// that always fail: in a sequential pool, which has no others in flight, those that fail again make no further one, else
// it would go from one to the next.
func (s *scheduler) closeBreaker(at int, success bool) {
	if b := &s.servers[at].breaker; success && s.cfg.Size == 1 && b.Probes <= falseAlarmProbes {
		for _, t := range b.voided {
			t.suspect = true
		}
	}
	s.servers[at].breaker = breaker{}
	s.restart(at)
	s.delayAgain()
	s.showPause()
}

// restart lets the law of a server begin again: what it has learned is void.
func (s *scheduler) restart(at int) {
	s.servers[at].law.Restart(s.tick)
}

// sensed acts on the verdict on t while the server that it asked is out. The breaker closes with the first answer that no
// sick server gives, to a probe or to a call that went after the first failure; one that went before may have been served
// before.
func (s *scheduler) sensed(t *task) {
	b, v := &s.servers[t.att.Server].breaker, &t.verdict
	probe := t.att.Probe && !t.att.Dispatched.Before(b.opened)
	if t == b.probe {
		b.probe = nil
	}
	switch {
	case v.void() || v.Class == Cancelled || isPanic(v.Err):
		if probe {
			b.Next = s.tick // it found out nothing
		}
	case v.inDoubt():
		if probe {
			b.Err, b.unreached = v.Err, v.Origin == OfNetwork
		}
		if !v.Unsent {
			b.Lost++
		}
	case probe || v.Class == OK && t.att.Dispatched.After(b.Since):
		s.closeBreaker(t.att.Server, v.Class == OK)
	}
}

// outageProbe returns the job that probes a server in an outage now, and the server. If there is none, next is the instant
// at which there will be one, zero if that depends on an event or on time alone, see due.
func (s *scheduler) outageProbe() (t *task, at int, next time.Time) {
	for at := range s.servers {
		v := &s.servers[at]
		if !v.out() || !v.breaker.lets(s.tick) {
			continue
		}
		t := s.outageProber(at)
		if t == nil {
			continue
		}
		when := v.next(s.tick, t, at)
		if !when.After(s.tick) {
			return t, at, time.Time{}
		}
		next = sooner(next, when)
	}
	return nil, 0, next
}

// outageProber returns the job that would probe a server: one that waits there, or that may go past those before it.
func (s *scheduler) outageProber(at int) *task {
	for i := at; i >= 0; i-- {
		if i < at && !s.passed(i) {
			break
		}
		if t := s.prober(&s.servers[at].breaker, i); t != nil {
			return t
		}
	}
	return nil
}

// stuckSince returns since when outages leave a job that waits at a server nowhere to go; zero: it has somewhere.
func (s *scheduler) stuckSince(at int) (since time.Time) {
	for i := at; i < len(s.servers); i++ {
		v := &s.servers[i]
		switch {
		case v.out():
			since = later(since, v.breaker.Since)
		case i > at && v.shut.After(s.tick):
			since = later(since, v.shut.Add(-s.cfg.ProbeInterval)) // see shun
		default:
			return time.Time{}
		}
		if !s.passed(i) {
			break
		}
	}
	return since
}

// stuck reports whether that is so at the first server.
func (s *scheduler) stuck() bool { return !s.stuckSince(0).IsZero() }

// endHolds fails the jobs that an outage has held for Config.OutageHold.
func (s *scheduler) endHolds() {
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

// outageDue returns the instant at which an outage needs a look; zero: none will by itself.
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

// Shortages. Where this machine has no descriptor, port or buffer left, the calls in flight are as many as it can bear: no
// more go until some end, and one more is tried from time to time. Where nothing is in flight, nothing is going to be given
// back, and the pool pauses.

const (
	// One more call in flight is tried so often. Where fewer are wanted it is allowed all the same, else a shortage that is
	// long over would be reported until as many are.
	shortageGrowth = 5 * time.Second
)

// shortage bounds the calls in flight; room 0: it does not.
type shortage struct {
	room  int
	grown time.Time
	err   error
}

// shortOf acts on a verdict that this machine was short of something for t, which waits on unharmed.
func (s *scheduler) shortOf(t *task) {
	s.putBack(t)
	begins := s.shortage.room == 0
	s.shortage = shortage{room: max(1, s.counts.InFlight), grown: s.tick, err: t.verdict.Err}
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
		s.enough()
		return s.cfg.Size
	}
	return h.room
}

// enough ends a shortage.
func (s *scheduler) enough() {
	if s.shortage.room == 0 {
		return
	}
	s.shortage, s.counts.Shortage = shortage{}, nil
	s.cfg.OnShortage(nil)
}
