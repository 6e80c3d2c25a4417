package pool

import (
	"time"

	"github.com/llm-stage/stage/aimd"
)

// server is one of the servers that attempts go to, with the jobs that wait for it. Each has a law of its own: what one
// rejects is no evidence about the others.
//
// A job waits at one server and moves from there only forwards, when its attempts are used up. While that server has
// been without capacity, or slow, for Config.FallbackAfter an attempt may go past it, to the next one that admits it; the
// job stays where it waits, so that it comes back as soon as there is capacity again.
type server struct {
	law   Law
	gates []Gate
	ready taskHeap // jobs that may have their next attempt, oldest first

	// In flight: inFlight[t.slot] == t for each; law and gates have counted each as sent and not yet as ended.
	inFlight []*task
	attempts uint64 // sent so far; task.seq of the latest

	// Refusals, see alone.go: how attempts of jobs ended that are not known to be refused alone.
	accepted, rejected int
	refused            []*task // jobs with refusals.run > 0
	vain               int     // retries refused since one was not
	retried            bool    // the latest attempt was a retry

	// Availability: attempts go past the server while it is shut, or out, starved or slow for longer than
	// Config.FallbackAfter.
	starved time.Time // the first capacity error since the last success; zero: there was none
	pace    pace
	shut    time.Time // skipped until then, after a fatal verdict
	held    bool      // nothing more goes there in this call of first

	health  health
	breaker breaker   // open in an outage; health then doubts no job
	checked time.Time // when endHolds last looked through its jobs
}

func newServers(cfg Config) (servers []server, err error) {
	for _, c := range append([]Server{{Law: cfg.Law, Gates: cfg.Gates}}, cfg.Fallbacks...) {
		if c.Law == nil {
			if c.Law, err = aimd.NewClassic(aimd.Default()); err != nil {
				return nil, err
			}
		}
		servers = append(servers, server{
			law: c.Law, gates: c.Gates, ready: taskHeap{less: older}, health: health{share: share{long: shareAtFirst}},
		})
	}
	return servers, nil
}

// next returns the instant at which an attempt at t may go to the server, the index of which is i.
func (v *server) next(now time.Time, t *task, i int) time.Time {
	at := v.law.Next(now, len(v.inFlight))
	v.pace.waits = v.pace.waits || at.After(now) && !v.out()
	if v.shut.After(at) {
		at = v.shut
	}
	if len(v.gates) == 0 {
		return at
	}
	w := t.work.weight(i)
	for _, g := range v.gates {
		if gate := g.Next(now, w); gate.After(at) {
			at = gate
		}
	}
	return at
}

// sent reports to law and gates that an attempt at t goes now.
func (v *server) sent(now time.Time, t *task) {
	v.attempts++
	v.pace.count(1)
	v.retried = t.att.Number > 1
	t.seq, t.slot, t.seen = v.attempts, len(v.inFlight), v.health.successes
	v.inFlight = append(v.inFlight, t)
	if !t.att.Probe {
		v.health.share.sent()
	}
	t.ticket = v.law.Sent(now, len(v.inFlight))
	if len(v.gates) == 0 {
		return
	}
	t.weighed = t.work.weight(t.att.Server)
	for _, g := range v.gates {
		g.Sent(now, t.weighed)
	}
}

// ended reports to law and gates how that attempt ended, and records whether the server has capacity.
func (v *server) ended(now time.Time, t *task) {
	last := v.inFlight[len(v.inFlight)-1]
	v.inFlight[t.slot], last.slot = last, t.slot
	v.inFlight[len(v.inFlight)-1] = nil // for the garbage collector
	v.inFlight = v.inFlight[:len(v.inFlight)-1]
	verdict, actual := &t.verdict, t.weighed
	if verdict.Class == Capacity {
		v.pace.count(-1) // after all
	}
	switch {
	case verdict.void() || verdict.Class == Cancelled || isPanic(verdict.Err) || verdict.inDoubt() && verdict.Origin == OfNetwork:
		v.law.Dropped(now, t.ticket)
	case verdict.Class == Capacity && t.refusals.spared:
		actual = 0
		v.law.Dropped(now, t.ticket)
	case verdict.Class == Capacity:
		actual = 0
		v.law.Rejected(now, t.ticket, verdict.Hint)
		if v.starved.IsZero() {
			v.starved = now
		}
	default:
		t.ticket.Output = verdict.Output
		v.law.Accepted(now, t.ticket)
	}
	if !t.att.Probe && (verdict.void() || verdict.Class == Cancelled || verdict.Class == Capacity) {
		v.health.share.void()
	}
	if verdict.Class == OK {
		v.starved = time.Time{}
	}
	if verdict.void() || verdict.inDoubt() && verdict.Unsent {
		actual = 0
	} else if verdict.Weight > 0 {
		actual = verdict.Weight
	}
	for _, g := range v.gates {
		g.Ended(now, t.weighed, actual)
	}
}

// first returns the task whose turn it is and the server that it goes to. If there is none, next is the instant at
// which there will be one, zero if that depends on an event.
//
// At each server the oldest waiting task goes first, and among those the oldest that has a server to go to.
func (s *scheduler) first() (t *task, at int, next time.Time) {
	t, at, next = s.probe()
	if t != nil || s.paused() {
		return t, at, next
	}
	for i := range s.servers {
		s.servers[i].held = false
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

// oldest returns the task with the lowest index among those whose server is not held, or nil. See alone.go for when it is
// another one.
func (s *scheduler) oldest() (t *task) {
	for i := range s.servers {
		v := &s.servers[i]
		if v.held {
			continue
		}
		if head := v.firstReady(); head != nil && (t == nil || older(head, t)) {
			t = head
		}
	}
	mayStart := t == nil || t.server == 0 && s.servers[0].yields()
	if mayStart && !s.servers[0].held && !s.mustNotOvertake() {
		if next := s.fresh.first(); next != nil { // younger than all that have started
			return next
		}
	}
	return t
}

// mustNotOvertake reports whether no new job may start: in a sequential pool, while one that has started waits.
func (s *scheduler) mustNotOvertake() bool {
	return s.cfg.Size == 1 && s.waiting()-s.parked > s.fresh.size+s.fresh.singles.size
}

// place finds the server that an attempt at t may go to now: its own or, past those without capacity, a later one. If
// there is none it is -1; all that were considered are held for the younger tasks too, and when is the instant to try
// again.
func (s *scheduler) place(t *task) (at int, when time.Time) {
	for i := t.server; i < len(s.servers); i++ {
		v := &s.servers[i]
		switch {
		case v.held:
		case v.out(), v.health.settingsSuspected(): // only probes go there
			v.held = true
		case v.health.judgeAt.After(s.tick):
			v.held, when = true, sooner(when, v.health.judgeAt)
		default:
			next := v.next(s.tick, t, i)
			if !next.After(s.tick) {
				return i, time.Time{}
			}
			v.held = true
			when = sooner(when, next)
		}
		pass := s.passable(i)
		if pass.IsZero() || pass.After(s.tick) {
			return -1, sooner(when, pass)
		}
	}
	return -1, when
}

// passable returns the instant from which attempts may go past server i; zero: there is none at present.
func (s *scheduler) passable(i int) time.Time {
	v := &s.servers[i]
	since := sooner(v.starved, v.pace.slow)
	if v.out() {
		since = sooner(since, v.breaker.Since)
	}
	switch {
	case i == len(s.servers)-1:
		return time.Time{}
	case v.shut.After(s.tick), v.out() && s.cfg.FallbackAfter == 0: // as if their attempts there were used up
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

// moveOn moves t, whose attempts at its server are used up, to the next one; behind the last it fails.
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
	s.forget(t)
	s.servers[t.server].forgive(t)
	t.server, t.failures = i, 0
}

// nextServer returns the next server behind that of t which is not shut; -1: there is none.
func (s *scheduler) nextServer(t *task) int {
	for i := t.server + 1; i < len(s.servers); i++ {
		if !s.servers[i].shut.After(s.tick) {
			return i
		}
	}
	return -1
}

// skipServer shuts the fallback that gave t a fatal verdict for a while: the pool continues without it.
func (s *scheduler) skipServer(t *task) {
	s.servers[t.att.Server].shut = s.tick.Add(s.cfg.ProbeInterval)
	if t.server < t.att.Server { // it was sent there for lack of capacity, and keeps waiting for that
		s.again(t, 0)
		return
	}
	s.moveOn(t)
}
