package pool

import (
	"time"
)

// PauseKind is the kind of problem that pauses a pool.
type PauseKind uint8

// The kinds. The zero value is NotPaused.
const (
	NotPaused     PauseKind = iota
	FatalError              // a fatal verdict
	WrongSettings           // the same verdict about every job
	Outage                  // the server, or the network path to it, is out
	Shortage                // this machine is short of something, and no call is in flight that could release it
	Operator                // somebody asked for it, see [Pool.Halt]: nothing goes, no probe either
)

var pauseNames = [...]string{"", "fatal", "settings", "outage", "shortage", "operator"}

// String returns the kind in one word in lower case; empty for NotPaused.
func (k PauseKind) String() string { return nameOf(k, pauseNames[:], "pause") }

// Pause describes why a pool is paused: only probes go out, until one finds that the problem is over.
type Pause struct {
	// Kind is NotPaused in the zero value, which describes a pool that runs.
	Kind PauseKind
	// Err is the error of the latest probe, or the one that began the pause.
	Err error
	// Since is when the problem began: for an outage the first failure after the last success.
	Since time.Time
	// Absent is, in an outage, since when nothing has listened at any of the servers, none of which has had a success;
	// zero: something does, or did.
	Absent time.Time
	// Next is the instant of the next probe; one in the past waits for a job, or for the verdict on the last probe. Zero for
	// Operator.
	Next time.Time
	// Probes counts those that have been sent.
	Probes int
	// Lost counts, in an outage, the calls that were sent and got no answer since it began, probes included. They may
	// have been paid for.
	Lost int
	// Server is the one concerned: 0 for the first, n for the n-th fallback.
	Server int
	// Passed means, of a pause that is over, that the server is still out and jobs go past it to a fallback.
	Passed bool
}

// The waits between the probes of an outage or a shortage: short at first, as most last seconds, then in proportion to
// how long it has lasted. So an outage of half a minute costs some 25 probes and ends within 1.25 s of the server's
// return, and one of an hour costs 150. Probes that reach no server are free, so their frequency drops later: the end
// of an outage of two minutes is noticed within a second, and one of an hour costs 530 refused connections.
const (
	firstProbeWait = 250 * time.Millisecond
	probeWait      = 1200 * time.Millisecond
	probeAgeShare  = 24 // a wait is at most the age divided by this

	unreachedWait     = time.Second
	unreachedAgeShare = 120
)

// breaker is open while only probes may go. It belongs to no job: the one that met the problem may be recalled, and
// whichever is first in line when a probe is due finds out whether it is over. Without a job it stays open until one
// arrives.
type breaker struct {
	Pause // as reported; zero while the breaker is closed, as is all below but voided

	opened time.Time
	wait   time.Duration // between the last two probes
	voided []*task       // jobs whose failures do not count because of it

	// The probe in flight: at most one is waited for. One that outlasts patience no longer keeps the next from going,
	// and its verdict counts when it comes.
	probe     *task         // the latest one; nil once its verdict is there
	sent      time.Time     // when it went
	patience  time.Duration // 0: unlimited
	unreached bool          // the latest verdict on a probe of an outage: it reached no server

	// round is scheduler.probes as of the start of this round: each waiting job is the probe at most once in a round.
	round int
}

func (b *breaker) isOpen() bool { return b.Kind != NotPaused }

// next returns the instant of the next probe; zero: that depends on the one in flight.
func (b *breaker) next() time.Time {
	if b.probe == nil {
		return b.Next
	}
	if b.patience == 0 {
		return time.Time{}
	}
	return later(b.Next, b.sent.Add(b.patience))
}

func (b *breaker) mayProbe(now time.Time) bool {
	at := b.next()
	return !at.IsZero() && !at.After(now)
}

// probeSent records that t goes as a probe, and schedules the next one.
func (b *breaker) probeSent(now time.Time, t *task, interval time.Duration) {
	b.probe, b.sent = t, now
	b.Probes++
	if b.Kind == Outage || b.Kind == Shortage {
		least, parts := probeWait, time.Duration(probeAgeShare)
		if b.unreached {
			least, parts = unreachedWait, unreachedAgeShare
		}
		b.wait = min(2*b.wait, max(least, now.Sub(b.opened)/parts), interval)
		b.Next = now.Add(b.wait)
	}
}

// steady reports whether the probes of a pause keep an even interval, because each may cost money.
func (b *breaker) steady() bool { return b.Kind == FatalError || b.Kind == WrongSettings }

// pauseAll opens the pool's own breaker because of an error of a server, the one that t met. While it is open, others
// whose calls are in flight may meet such an error too: only that of a probe postpones the next probe.
func (s *scheduler) pauseAll(kind PauseKind, server int, err error, t *task) {
	b := &s.pause
	if b.isOpen() && b.Kind == kind && t != b.probe {
		return
	}
	wait := firstProbeWait
	if kind == FatalError || kind == WrongSettings {
		wait = s.cfg.ProbeInterval
	}
	switch {
	case b.Kind != kind:
		*b = breaker{
			Pause:  Pause{Kind: kind, Since: s.tick, Next: s.tick.Add(wait), Server: server},
			opened: s.tick, wait: wait, round: s.probes,
		}
	case b.steady():
		b.Next = s.tick.Add(wait)
	}
	b.probe, b.Err = nil, err
	s.showPause()
}

// settleProbe acts on the verdict on the probe of the pool's own breaker. An error like the one that opened it opens it
// again, see pauseAll. A probe that was cut off is no evidence, so the next in line goes at once.
func (s *scheduler) settleProbe(t *task) {
	b, v := &s.pause, &t.verdict
	again := v.Class == Fatal
	switch b.Kind {
	case WrongSettings:
		again = again || v.Class != OK && v.Class != Cancelled // another error is no evidence about the settings
		b.Next, b.Err = s.tick.Add(s.cfg.ProbeInterval), v.Err
	case Shortage:
		again = v.Origin == OfHost
	case NotPaused, FatalError, Outage, Operator:
	}
	switch {
	case v.Class == Cancelled || again && b.Kind == WrongSettings:
		b.probe = nil
	case !again:
		s.resume()
	}
}

// resume closes the pool's own breaker.
func (s *scheduler) resume() {
	kind := s.pause.Kind
	if kind == WrongSettings || kind == Shortage {
		s.servers[s.pause.Server].law.Restart(s.tick)
	}
	if kind == Shortage {
		s.endShortage()
	}
	s.pause = breaker{}
	s.showPause()
}

// paused reports whether the pool's own breaker is open.
func (s *scheduler) paused() bool { return s.pause.isOpen() }

// held reports whether jobs may go only as probes.
func (s *scheduler) held() bool { return s.counts.Pause.Kind != NotPaused }

// showPause updates the pause that Stats reports, and calls OnPause or OnResume when one begins or ends. A pool is
// paused by its own breaker, by that of the first server where jobs cannot go past it, and above all by an operator.
func (s *scheduler) showPause() {
	before, now := s.counts.Pause, s.pause.Pause
	if now.Kind == NotPaused && s.stuck() {
		now = s.servers[0].breaker.Pause
		now.Absent = s.absentSince()
	}
	if s.halted() {
		now = s.halt
	}
	s.counts.Pause = now
	if before.Kind == now.Kind {
		return
	}
	switch {
	case before.Kind == NotPaused:
		s.heldSince = s.tick
	case now.Kind == Operator: // what was the matter before may still be
	default:
		before.Passed = before.Kind != Operator && s.servers[before.Server].breaker.isOpen()
		s.cfg.OnResume(before)
	}
	if now.Kind == NotPaused {
		s.heldFor += s.tick.Sub(s.heldSince)
	} else {
		for s.fresh.singles.head != nil {
			s.refuse(s.fresh.singles.pop())
		}
		s.cfg.OnPause(now)
	}
	s.delayAgain()
}

// probe returns the job that probes a server now, and the server. If there is none, next is the instant at which there
// will be one, zero if that depends on an event or on time alone, see due.
func (s *scheduler) probe() (t *task, at int, next time.Time) {
	for at := range s.servers {
		t := s.probeOf(at)
		if t == nil {
			continue
		}
		when := s.servers[at].next(s.tick, t, at)
		if !when.After(s.tick) {
			return t, at, time.Time{}
		}
		next = sooner(next, when)
		if s.paused() {
			// The first server takes precedence, as its errors pause the pool: an answer of a fallback proves little
			// and only beats waiting without end.
			break
		}
	}
	return nil, 0, next
}

// probeOf returns the job that may probe a server at this instant, or nil: one that waits there, or in an outage one
// that may go past the servers before it.
func (s *scheduler) probeOf(at int) *task {
	b := &s.servers[at].breaker
	if s.paused() {
		b = &s.pause
	}
	if !b.isOpen() || !b.mayProbe(s.tick) {
		return nil
	}
	t := s.prober(b, at)
	for i := at - 1; t == nil && b != &s.pause && i >= 0 && s.passed(i); i-- {
		t = s.prober(b, i)
	}
	return t
}

// prober returns the job that probes next for a breaker, of those that wait at a server, or nil: the oldest, and where
// the job itself may be the problem the oldest that has not been a probe in this round, so that it cannot keep the
// breaker open. A probe for another breaker counts too, else one job could keep two open by turns.
func (s *scheduler) prober(b *breaker, at int) *task {
	ready := &s.servers[at].ready
	if b.Kind == FatalError || b.Kind == Shortage {
		if t := ready.first(); t != nil {
			return t
		}
		if at > 0 || s.mustNotOvertake() {
			return nil
		}
		return s.fresh.firstJob()
	}
	var t *task
	if at == 0 { // one that has not failed is the best evidence
		t = s.fresh.firstJob()
	}
	if t == nil {
		t = ready.oldest(func(t *task) bool { return t.probed <= b.round })
	}
	if t == nil && ready.first() != nil {
		b.round = s.probes
		t = ready.first()
	}
	return t
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// haltOrder is what [Pool.Halt] and [Pool.Continue] ask for.
type haltOrder struct{ why error } // nil: continue

// Halt holds all jobs and refuses single attempts until [Pool.Continue], and returns at once. Calls in flight go on, and
// their jobs wait where another attempt is needed. Nothing probes, deadlines stand still, and an outage fails no job
// meanwhile. Why is the error of the pause, of kind [Operator], that Stats reports. A pool that is halted stays so, with
// the error that it has.
func (p *Pool[In, Out]) Halt(why error) { p.sched.inbox.steer(&haltOrder{why}) }

// Continue ends what [Pool.Halt] began, and has a pool that is paused for another reason probe at once. It returns at
// once.
func (p *Pool[In, Out]) Continue() { p.sched.inbox.steer(&haltOrder{}) }

// Probe has the next probe of each pause or outage go at once, or with the next job if none waits. While a probe is in
// flight that is the next one. It returns at once, and does nothing while the pool is halted, or not paused.
func (p *Pool[In, Out]) Probe() {
	b := p.sched.inbox
	b.mu.Lock()
	b.probe = true
	b.mu.Unlock()
	b.signal()
}

// steer passes an order to the scheduler. Of several that it has not yet acted on the last one counts.
func (b *inbox) steer(o *haltOrder) {
	b.mu.Lock()
	b.halt = o
	b.mu.Unlock()
	b.signal()
}

// halted reports whether an operator holds the jobs.
func (s *scheduler) halted() bool { return s.halt.Kind != NotPaused }

// setHalt halts the pool, with the error why, or ends that.
func (s *scheduler) setHalt(why error) {
	switch {
	case why == nil:
		if s.halted() {
			for i := range s.servers { // a row that an outage has held for long gets the probe that goes now
				s.servers[i].checked = s.tick
			}
		}
		s.halt = Pause{}
		s.probeNow()
	case !s.halted():
		s.halt = Pause{Kind: Operator, Err: why, Since: s.tick}
	}
}

// probeNow makes the next probe of each open breaker due.
func (s *scheduler) probeNow() {
	if s.halted() {
		return
	}
	if s.pause.isOpen() {
		s.pause.Next = s.tick
	}
	for i := range s.servers {
		if b := &s.servers[i].breaker; b.isOpen() {
			b.Next = s.tick
		}
	}
}
