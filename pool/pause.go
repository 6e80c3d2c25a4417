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
	FatalError              // an attempt had a fatal verdict
	WrongSettings           // every job met the same error
	Outage                  // the server, or the network path to it, is out
	Shortage                // this machine is short of something, and no call is in flight that could release it
	Operator                // somebody asked for it, see [Pool.Halt]: nothing goes, not even a probe
)

var pauseNames = [...]string{"", "fatal", "settings", "outage", "shortage", "operator"}

// String returns the kind in one word in lower case. It is empty for NotPaused.
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
	// Absent is, in an outage, the time since when nothing has listened at any of the
	// servers. It is zero if something listens at one of them, or one has had a success.
	Absent time.Time
	// Next is the instant of the next probe. If it has passed, the probe waits for a job,
	// or for the verdict on the last probe. It is zero for Operator.
	Next time.Time
	// Probes counts the probes that have been sent.
	Probes int
	// Lost counts, in an outage, the calls that were sent and failed since it began,
	// probes included. They may have been paid for.
	Lost int
	// Server is the server concerned: 0 is the first one, n the n-th fallback.
	Server int
	// Passed means, of a pause that is over, that the server is still out and jobs go
	// past it to a fallback.
	Passed bool
}

// pauses is what may hold the whole pool. Three things may, and more than one of them at a
// time. The pool reports the first of them that applies:
//
//  1. an operator's halt,
//  2. its own breaker, which a fatal verdict, wrong settings or a shortage has opened,
//  3. outages that leave the jobs of the first server nowhere to go (see route.outage).
//
// The zero value holds nothing.
type pauses struct {
	halt      Pause     // of kind Operator; the zero value if there is none
	continued time.Time // when the last halt ended

	breaker health.Breaker // the pool's own
	kind    PauseKind      // what opened the breaker; NotPaused while it is closed
	server  int            // the server concerned

	present Pause // what the pool reports
	clock   clock // stands still exactly while present is a pause
}

// halted reports whether an operator holds the jobs.
func (p *pauses) halted() bool { return p.halt.Kind != NotPaused }

// own reports whether the pool's own breaker is open.
func (p *pauses) own() bool { return p.kind != NotPaused }

// any reports whether jobs may go only as probes, as of the last call of set.
func (p *pauses) any() bool { return p.present.Kind != NotPaused }

// open opens the pool's own breaker because of an error of a server, the one that j met.
// While the breaker is open, others whose calls are in flight may meet such an error too:
// only that of a probe postpones the next probe. Every is the time between probes.
func (p *pauses) open(now time.Time, kind PauseKind, server int, err error, j *health.Job, every time.Duration) {
	switch {
	case p.kind != kind:
		p.breaker, p.kind, p.server = health.NewBreaker(now, now, err, every), kind, server
	case p.breaker.IsProbe(j):
		p.breaker.ProbeFailed(now, err)
	}
}

// settle acts on the verdict on a job if it is the probe of the pool's own breaker. It
// reports whether that shows that the problem is over. An error like the one that opened
// the breaker is recorded by open. A probe that was cut off is no evidence, so the next in
// line goes at once.
func (p *pauses) settle(now time.Time, j *health.Job, v *Verdict) (over bool) {
	switch {
	case !p.breaker.IsProbe(j):
		return false
	case v.Class == Cancelled:
		p.breaker.ProbeLost()
		return false
	case p.kind == WrongSettings && v.Class != OK: // another error is no evidence about the settings
		p.breaker.ProbeFailed(now, v.Err)
		return false
	default:
		again := p.kind == Shortage && v.Origin == OfHost || p.kind == FatalError && v.Class == Fatal
		return !again
	}
}

// close closes the pool's own breaker.
func (p *pauses) close() { p.breaker, p.kind, p.server = health.Breaker{}, NotPaused, 0 }

// foremost returns the first pause that applies, where outage is the third.
func (p *pauses) foremost(outage Pause) Pause {
	switch {
	case p.halted():
		return p.halt
	case p.own():
		return describe(p.kind, p.server, &p.breaker)
	default:
		return outage
	}
}

// set makes next what the pool reports, and has the running time stand still while that
// is a pause. It reports whether the kind is another one than before.
func (p *pauses) set(now time.Time, next Pause) (changed bool) {
	before := p.present.Kind
	p.present = next
	switch {
	case before == next.Kind:
		return false
	case before == NotPaused:
		p.clock.stop(now)
	case next.Kind == NotPaused:
		p.clock.start(now)
	}
	return true
}

// describe returns what is reported about an open breaker.
func describe(kind PauseKind, server int, b *health.Breaker) Pause {
	return Pause{
		Kind: kind, Err: b.Err, Since: b.Since, Absent: b.Absent, Next: b.Next,
		Probes: b.Probes, Lost: b.Lost, Server: server,
	}
}

// pauseAll opens the pool's own breaker, see pauses.open.
func (s *scheduler) pauseAll(kind PauseKind, server int, err error, j *health.Job) {
	every := s.cfg.ProbeInterval // each probe may cost money
	if kind == Shortage {
		every = 0
	}
	s.pauses.open(s.tick, kind, server, err, j, every)
	s.showPause()
}

// resume closes the pool's own breaker.
func (s *scheduler) resume() {
	kind, at := s.pauses.kind, s.pauses.server
	if kind == WrongSettings || kind == Shortage {
		s.route.servers[at].law.Restart(s.tick)
	}
	if kind == Shortage {
		s.shortage.end()
	}
	s.pauses.close()
	s.showPause()
}

// showPause updates the pause that the pool reports. It calls OnPause when a pause begins,
// and OnResume when it ends.
func (s *scheduler) showPause() {
	s.health.WrongSettings = s.pauses.kind == WrongSettings
	before, now := s.pauses.present, s.pauses.foremost(s.route.outage(s.tick))
	if !s.pauses.set(s.tick, now) {
		return
	}
	if before.Kind != NotPaused && now.Kind != Operator { // at a halt, what was the matter before may still be
		before.Passed = before.Kind != Operator && s.route.servers[before.Server].Out()
		s.cfg.OnResume(before)
	}
	if now.Kind != NotPaused {
		for _, t := range s.queue.fresh.remove(func(t *task) bool { return t.Single }) {
			s.queue.vacate(t)
			s.refuse(t)
		}
		s.cfg.OnPause(now)
	}
	s.delayAgain()
}

// haltOrder is what [Pool.Halt] and [Pool.Continue] ask for. A nil why lets the pool
// continue.
type haltOrder struct{ why error }

// Halt holds all jobs and refuses single attempts until [Pool.Continue], and returns at
// once. Calls in flight go on, and their jobs wait where another attempt is needed.
// Nothing probes, deadlines stand still, and an outage fails no job meanwhile:
// Config.OutageHold counts anew when the halt is over. Why is the error of the pause, of
// kind [Operator], that Stats reports. A pool that is halted stays so, with the error that
// it has.
func (p *Pool[In, Out]) Halt(why error) { p.sched.inbox.steer(&haltOrder{why}) }

// Continue ends what [Pool.Halt] began, and has a pool that is paused for another reason
// probe at once. It returns at once.
func (p *Pool[In, Out]) Continue() { p.sched.inbox.steer(&haltOrder{}) }

// Probe has the next probe of each pause or outage go at once, or with the next job if
// none waits. While a probe is in flight that is the next one. It returns at once. While
// the pool is halted, and where there is neither pause nor outage, it does nothing.
func (p *Pool[In, Out]) Probe() {
	b := p.sched.inbox
	b.mu.Lock()
	b.probe = true
	b.mu.Unlock()
	b.signal()
}

// steer passes an order to the scheduler. If there are several that the scheduler has not
// acted on yet, the last one counts.
func (b *inbox) steer(o *haltOrder) {
	b.mu.Lock()
	b.halt = o
	b.mu.Unlock()
	b.signal()
}

// setHalt halts the pool with the error why, or ends the halt if why is nil.
func (s *scheduler) setHalt(why error) {
	switch {
	case why == nil:
		if s.pauses.halted() {
			s.pauses.continued = s.tick
		}
		s.pauses.halt = Pause{}
		s.probeNow()
	case !s.pauses.halted():
		s.pauses.halt = Pause{Kind: Operator, Err: why, Since: s.tick}
	}
}

// probeNow makes the next probe of each open breaker due.
func (s *scheduler) probeNow() {
	if s.pauses.halted() {
		return
	}
	if s.pauses.own() {
		s.pauses.breaker.Next = s.tick
	}
	for i := range s.route.servers {
		if b := &s.route.servers[i].Outage; b.IsOpen() {
			b.Next = s.tick
		}
	}
}

// refuse ends a single attempt that the paused pool does not make.
func (s *scheduler) refuse(t *task) {
	pause, class := s.pauses.present, Fatal
	err := fmt.Errorf("%w: %w", ErrPaused, pause.Err)
	if pause.Kind == Outage || pause.Kind == Shortage {
		err, class = fmt.Errorf("%w: %w: %w", ErrPaused, ErrOutage, pause.Err), Transient
	}
	s.finish(t, err, class, s.tick)
}

// outageBegan acts on the beginning of an outage, which health has found. The jobs that
// wait at a fallback move back to the first server, which may have recovered long ago.
func (s *scheduler) outageBegan(at int) {
	s.route.servers[at].checked = s.tick
	if at > 0 {
		here := func(t *task) bool { return t.Server() == at }
		for _, t := range append(s.queue.ready[at].remove(here), s.queue.delayed.remove(here)...) {
			s.health.Move(&t.Job, 0)
			s.queue.makeReady(t)
		}
	}
	s.delayAgain()
	s.showPause()
}

// failOverdue fails the jobs that an outage has held for Config.OutageHold. It looks once
// in lookEvery, and at once where a job has come: while jobs wait there is room for a
// sixteenth of the slots only, so the others wait where they come from. If they came in a
// second apart, a pool of 16 would fail one of them a second, however long they have
// waited.
func (s *scheduler) failOverdue() {
	if s.cfg.OutageHold == 0 || s.pauses.halted() {
		return
	}
	for i := range s.route.servers {
		v := &s.route.servers[i]
		if s.tick.Before(v.checked.Add(lookEvery)) {
			continue
		}
		since := s.route.stuckSince(s.tick, i)
		if since.IsZero() {
			continue
		}
		v.checked = s.tick
		since = later(since, s.pauses.continued) // until then no probe could show that the outage was over
		over := func(t *task) bool {
			return t.Server() == i && s.tick.Sub(later(since, t.arrived)) >= s.cfg.OutageHold
		}
		for _, t := range s.queue.remove(over) {
			s.finish(t, fmt.Errorf("%w for %v: %w", ErrOutage, s.cfg.OutageHold, v.Outage.Err), Transient, s.tick)
		}
	}
}

// limitCalls acts on a verdict that this machine was short of something for t, which
// keeps its place and its attempts.
func (s *scheduler) limitCalls(t *task) {
	s.queue.putBack(t)
	s.shortage.met(s.tick, s.counts.InFlight, t.verdict.Err)
	if s.counts.InFlight == 0 || s.pauses.kind == Shortage {
		s.pauseAll(Shortage, t.att.Server, t.verdict.Err, &t.Job)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
