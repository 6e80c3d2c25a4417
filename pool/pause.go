package pool

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/pool/internal/health"
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

// Pause describes why a pool is paused: only probes go out, until one finds that the
// problem is over.
type Pause struct {
	// Kind is NotPaused in the zero value, which describes a pool that runs.
	Kind PauseKind
	// Err is the error of the latest probe, or the one that began the pause.
	Err error
	// Since is when the problem began: for an outage the first failure after the last
	// success.
	Since time.Time
	// Absent is, in an outage, since when nothing has listened at any of the servers,
	// none of which has had a success; zero if something does, or did.
	Absent time.Time
	// Next is the instant of the next probe; one in the past waits for a job, or for the
	// verdict on the last probe. Zero for Operator.
	Next time.Time
	// Probes counts those that have been sent.
	Probes int
	// Lost counts, in an outage, the calls that were sent and got no answer since it
	// began, probes included. They may have been paid for.
	Lost int
	// Server is the one concerned: 0 for the first, n for the n-th fallback.
	Server int
	// Passed means, of a pause that is over, that the server is still out and jobs go
	// past it to a fallback.
	Passed bool
}

// pause is what holds the whole pool: a breaker, the kind of problem that opened it, and
// the server concerned. The zero value is that nothing does.
type pause struct {
	health.Breaker

	kind   PauseKind
	server int
}

// describe returns what is reported about an open breaker.
func describe(kind PauseKind, server int, b *health.Breaker) Pause {
	return Pause{
		Kind: kind, Err: b.Err, Since: b.Since, Absent: b.Absent, Next: b.Next,
		Probes: b.Probes, Lost: b.Lost, Server: server,
	}
}

// breaker returns the one that decides when a probe goes to a server: the pool's own
// while that is open.
func (s *scheduler) breaker(at int) *health.Breaker {
	if s.paused() {
		return &s.pause.Breaker
	}
	return &s.servers[at].Outage
}

// pauseAll opens the pool's own breaker because of an error of a server, the one that j
// met. While it is open, others whose calls are in flight may meet such an error too:
// only that of a probe postpones the next probe.
func (s *scheduler) pauseAll(kind PauseKind, server int, err error, j *health.Job) {
	b := &s.pause
	switch {
	case b.kind != kind:
		every := s.cfg.ProbeInterval // each probe may cost money
		if kind == Shortage {
			every = 0
		}
		*b = pause{Breaker: health.NewBreaker(s.tick, s.tick, err, every), kind: kind, server: server}
	case b.IsProbe(j):
		b.ProbeFailed(s.tick, err)
	}
	s.health.WrongSettings = kind == WrongSettings
	s.showPause()
}

// settleProbe acts on the verdict on the probe of the pool's own breaker. An error like
// the one that opened it opens it again, see pauseAll. A probe that was cut off is no
// evidence, so the next in line goes at once.
func (s *scheduler) settleProbe(t *task) {
	b, v := &s.pause, &t.verdict
	switch {
	case v.Class == Cancelled:
		b.ProbeLost()
	case b.kind == WrongSettings && v.Class != OK: // another error is no evidence about the settings
		b.ProbeFailed(s.tick, v.Err)
	case b.kind == Shortage && v.Origin == OfHost, b.kind == FatalError && v.Class == Fatal:
	default:
		s.resume()
	}
}

// resume closes the pool's own breaker.
func (s *scheduler) resume() {
	kind := s.pause.kind
	if kind == WrongSettings || kind == Shortage {
		s.servers[s.pause.server].law.Restart(s.tick)
	}
	if kind == Shortage {
		s.endShortage()
	}
	s.pause = pause{}
	s.health.WrongSettings = false
	s.showPause()
}

// paused reports whether the pool's own breaker is open.
func (s *scheduler) paused() bool { return s.pause.IsOpen() }

// anyPause reports whether jobs may go only as probes.
func (s *scheduler) anyPause() bool { return s.counts.Pause.Kind != NotPaused }

// showPause updates the pause that Stats reports, and calls OnPause or OnResume when one
// begins or ends. A pool is paused by its own breaker, by that of the first server where
// jobs cannot go past it, and above all by an operator.
func (s *scheduler) showPause() {
	before, now := s.counts.Pause, describe(s.pause.kind, s.pause.server, &s.pause.Breaker)
	if now.Kind == NotPaused && s.stuck() {
		now = describe(Outage, 0, &s.servers[0].Outage)
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
		s.pauseSince = s.tick
	case now.Kind == Operator: // what was the matter before may still be
	default:
		before.Passed = before.Kind != Operator && s.servers[before.Server].Out()
		s.cfg.OnResume(before)
	}
	if now.Kind == NotPaused {
		s.pausedFor += s.tick.Sub(s.pauseSince)
	} else {
		for _, t := range s.fresh.remove(func(t *task) bool { return t.Single }) {
			s.vacate(t)
			s.refuse(t)
		}
		s.cfg.OnPause(now)
	}
	s.delayAgain()
}

// probe returns the job that probes a server now, and the server. If there is none, next
// is the instant at which there will be one, zero if that depends on an event or on time
// alone, see due.
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
	for i := at - 1; t == nil && !s.paused() && i >= 0 && s.passed(i); i-- {
		t = s.prober(b, i)
	}
	return t
}

// prober returns the job that probes next for a breaker, of those that wait at a server,
// or nil: the oldest, and where the job itself may be the problem the oldest that has not
// been a probe in this round, so that it cannot keep the breaker open. A probe for
// another breaker counts too, else one job could keep two open by turns.
func (s *scheduler) prober(b *health.Breaker, at int) *task {
	ready := &s.servers[at].ready
	if s.pause.kind == FatalError || s.pause.kind == Shortage {
		if t := ready.first(); t != nil {
			return t
		}
		if at > 0 || s.mustNotOvertake() {
			return nil
		}
		return s.firstFresh()
	}
	var t *task
	if at == 0 { // one that has not failed is the best evidence
		t = s.firstFresh()
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

// firstFresh returns the new job that comes first and is no single attempt, or nil: a
// single attempt whose probe fails would have failed for its caller.
func (s *scheduler) firstFresh() *task {
	t := s.fresh.head
	for t != nil && t.Single {
		t = t.next
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

// Halt holds all jobs and refuses single attempts until [Pool.Continue], and returns at
// once. Calls in flight go on, and their jobs wait where another attempt is needed.
// Nothing probes, deadlines stand still, and an outage fails no job meanwhile. Why is the
// error of the pause, of kind [Operator], that Stats reports. A pool that is halted stays
// so, with the error that it has.
func (p *Pool[In, Out]) Halt(why error) { p.sched.inbox.steer(&haltOrder{why}) }

// Continue ends what [Pool.Halt] began, and has a pool that is paused for another reason
// probe at once. It returns at once.
func (p *Pool[In, Out]) Continue() { p.sched.inbox.steer(&haltOrder{}) }

// Probe has the next probe of each pause or outage go at once, or with the next job if
// none waits. While a probe is in flight that is the next one. It returns at once, and
// does nothing while the pool is halted, or not paused.
func (p *Pool[In, Out]) Probe() {
	b := p.sched.inbox
	b.mu.Lock()
	b.probe = true
	b.mu.Unlock()
	b.signal()
}

// steer passes an order to the scheduler. Of several that it has not yet acted on the
// last one counts.
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
	if s.pause.IsOpen() {
		s.pause.Next = s.tick
	}
	for i := range s.servers {
		if b := &s.servers[i].Outage; b.IsOpen() {
			b.Next = s.tick
		}
	}
}

// refuse ends a single attempt that the paused pool does not make.
func (s *scheduler) refuse(t *task) {
	pause, class := s.counts.Pause, Fatal
	err := fmt.Errorf("%w: %w", ErrPaused, pause.Err)
	if pause.Kind == Outage || pause.Kind == Shortage {
		err, class = fmt.Errorf("%w: %w: %w", ErrPaused, ErrOutage, pause.Err), Transient
	}
	s.finish(t, err, class, s.tick)
}

// outageBegan acts on the beginning of an outage, which health has found.
func (s *scheduler) outageBegan(at int) {
	v := &s.servers[at]
	v.checked = s.tick
	if at > 0 {
		s.returnToFirst(v)
	}
	s.delayAgain()
	s.showPause()
}

// returnToFirst moves the jobs that wait at a fallback back to the first server, which
// may have recovered long ago.
func (s *scheduler) returnToFirst(v *server) {
	here := func(t *task) bool { return &s.servers[t.Server()] == v }
	for _, t := range append(v.ready.remove(here), s.delayed.remove(here)...) {
		s.moveTo(t, 0)
		s.servers[0].ready.push(t)
	}
}

// absentSince returns since when nothing has listened at any of the servers; zero means
// something does, or did.
func (s *scheduler) absentSince() (since time.Time) {
	for i := range s.servers {
		absent := s.servers[i].Outage.Absent
		if absent.IsZero() {
			return absent
		}
		since = later(since, absent)
	}
	return since
}

// stuckSince returns since when outages leave a job that waits at a server nowhere to go;
// zero means that it has somewhere.
func (s *scheduler) stuckSince(at int) (since time.Time) {
	for i := at; i < len(s.servers); i++ {
		v := &s.servers[i]
		switch {
		case v.Out():
			since = later(since, v.Outage.Since)
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

// failOverdue fails the jobs that an outage has held for Config.OutageHold.
func (s *scheduler) failOverdue() {
	if s.halted() {
		return
	}
	for i := range s.servers {
		v := &s.servers[i]
		if s.cfg.OutageHold == 0 || s.tick.Before(v.checked.Add(lookEvery)) {
			continue
		}
		since := s.stuckSince(i)
		if since.IsZero() {
			continue
		}
		v.checked = s.tick
		over := func(t *task) bool {
			return t.Server() == i && s.tick.Sub(later(since, t.arrived)) >= s.cfg.OutageHold
		}
		for _, t := range s.takeOut(over) {
			s.vacate(t)
			s.finish(t, fmt.Errorf("%w for %v: %w", ErrOutage, s.cfg.OutageHold, v.Outage.Err), Transient, s.tick)
		}
	}
}

// outageDue returns the instant at which the scheduler must look at an outage again; zero
// means that none by itself.
func (s *scheduler) outageDue() (at time.Time) {
	for i := range s.servers {
		v := &s.servers[i]
		if v.JudgeAt().After(s.tick) {
			at = sooner(at, v.JudgeAt())
		}
		if !v.Out() {
			continue
		}
		if next := v.Outage.Due(); next.After(s.tick) {
			at = sooner(at, next)
		}
		if pass := s.passable(i); pass.After(s.tick) {
			at = sooner(at, pass)
		}
		if s.cfg.OutageHold > 0 && !s.stuckSince(i).IsZero() {
			at = sooner(at, v.checked.Add(lookEvery))
		}
	}
	return at
}

// Shortages. Where this machine has no descriptor, port or buffer left, the calls in
// flight are as many as it can bear: no more go until some end, and one more is tried
// from time to time. With no call in flight none will release what is missing, so the
// pool pauses.

// shortageGrowth is how often one more call in flight is allowed. It is allowed even
// where fewer are wanted, else a shortage that is long over would be reported until that
// many are.
const shortageGrowth = 5 * time.Second

// shortage bounds the calls in flight. Its zero value does not.
type shortage struct {
	room  int       // most calls in flight, at least 1; 0 means no shortage
	grown time.Time // when room last changed
}

// limitCalls acts on a verdict that this machine was short of something for t, which
// keeps its place and its attempts.
func (s *scheduler) limitCalls(t *task) {
	s.putBack(t)
	begins := s.shortage.room == 0
	s.shortage = shortage{room: max(1, s.counts.InFlight), grown: s.tick}
	s.counts.Shortage = t.verdict.Err
	if begins {
		s.cfg.OnShortage(t.verdict.Err)
	}
	if s.counts.InFlight == 0 || s.pause.kind == Shortage {
		s.pauseAll(Shortage, t.att.Server, t.verdict.Err, &t.Job)
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
