package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/pool/internal/health"
)

var errNoReason = errors.New("call failed without a reason")

// scheduler is the one goroutine that owns the state of a pool: it takes jobs, decides
// which attempt goes when, and acts on the verdicts. The calls themselves run on workers.
// Other goroutines touch inbox, crew and shown only.
//
//	inbox ─> fresh (as they came) ┐
//	           ready (oldest) ───┴─ law ─> workers ─> inbox ─> settle ─> finish
//	delayed ────┘  └─────────────── after a fatal error ─────────┤
//	   └─────────────────────────── again, after a wait ─────────┘
//
// Each part of the state is a type with a file: the jobs that wait (queue), the servers
// that they may go to (route), what holds all of them (pauses), what this machine is
// short of (shortage), and the statistics (counts, shown). Package health decides what
// the ends of attempts mean. The methods of the scheduler connect these parts: this file
// has the loop and the verdicts, order.go the order in which jobs go, pause.go what
// pauses all of them, holds.go why a job waits.
type scheduler struct {
	cfg Config

	inbox *inbox
	crew  crew
	alarm alarm

	queue    queue
	route    route
	health   *health.Monitor
	pauses   pauses
	shortage shortage

	counts counts
	shown  shown

	tick     time.Time // when the inbox was last emptied; the loop reads the clock there only
	stopping bool      // jobs that wait are handed back; never false again
}

func newScheduler(cfg Config) (*scheduler, error) {
	m := health.New(health.Config{
		Servers:       1 + len(cfg.Fallbacks),
		Sequential:    cfg.Size == 1,
		Attempts:      cfg.Retry.MaxAttempts,
		BlameSettings: !cfg.FailOnFatal,
		SlowAfter:     cfg.FallbackAfter,
	})
	r, err := newRoute(cfg, m)
	if err != nil {
		return nil, err
	}
	in := newInbox(cfg.QueueLimit, cfg.Size)
	s := &scheduler{
		cfg:      cfg,
		inbox:    in,
		crew:     crew{work: make(chan *task), inbox: in},
		queue:    newQueue(len(r.servers), in),
		route:    r,
		health:   m,
		shortage: shortage{report: cfg.OnShortage},
		counts:   counts{Stats: Stats{PoolSize: cfg.Size}},
	}
	s.shown.set(s.snapshot(), s.tick)
	return s, nil
}

func (s *scheduler) run(ctx context.Context) error {
	defer s.crew.dismiss()
	defer context.AfterFunc(ctx, s.inbox.stop)()
	s.alarm.timer = time.AfterFunc(time.Hour, s.inbox.signal) // at is zero, so the first use resets it
	defer s.alarm.timer.Stop()

	for {
		if ctx.Err() != nil { // AfterFunc may be late, and no call may start with a cancelled context
			s.inbox.stop()
		}
		in := s.inbox.take()
		s.takeUp(&in)
		if s.stopping {
			s.handBack(func(*task) bool { return true })
		}
		s.release()
		s.lookAtServers()
		s.failOverdue()
		s.showPause()
		wake := s.dispatch(ctx)
		s.shown.set(s.snapshot(), s.tick)
		for _, q := range in.questions { // each server knows by now why it took no job
			q.answer <- s.waits(q.match)
		}
		if s.queue.vacated {
			s.queue.vacated = false
			s.cfg.OnRoom()
		}
		if in.closed && s.counts.InFlight == 0 && s.queue.size() == 0 {
			break
		}
		s.alarm.set(s.tick, wake)
		<-s.inbox.wake
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// takeUp acts on what was in the inbox. It reads the clock, once a turn: all that follows
// from what it found there happens at one instant.
func (s *scheduler) takeUp(in *intake) {
	s.stopping = in.draining
	last := s.tick
	s.tick = time.Now()
	s.counts.spend(s.tick.Sub(last))
	for i := range s.route.servers[:len(s.route.servers)-1] { // jobs can't go past the last one
		s.route.servers[i].Turn(last, s.tick)
	}
	if in.halt != nil {
		s.setHalt(in.halt.why)
	}
	if in.probe {
		s.probeNow()
	}
	if in.jobs.head != nil {
		s.route.servers[0].checked = time.Time{} // a new job may have waited elsewhere, see failOverdue
	}
	for in.jobs.head != nil {
		t := in.jobs.pop()
		t.att.Queued = s.tick
		t.arrived = sooner(t.arrived, s.tick)
		if t.Single && s.pauses.any() {
			s.queue.vacate(t)
			s.refuse(t)
			continue
		}
		s.queue.fresh.push(t)
	}
	for in.ended.head != nil { // after the new jobs, which count where a failure is in doubt
		s.settle(in.ended.pop())
	}
	if in.recall != nil {
		s.handBack(in.recall)
	}
}

// handBack returns the waiting jobs that match unfinished.
func (s *scheduler) handBack(match func(*task) bool) {
	for _, t := range s.queue.remove(match) {
		s.finish(t, ErrHandedBack, Cancelled, s.tick)
	}
}

// dispatch sends what may go now. It returns the instant at which to run again without an
// event; zero means never.
func (s *scheduler) dispatch(ctx context.Context) (wake time.Time) {
	s.counts.throttled, s.counts.full = false, false
	if s.pauses.halted() {
		return time.Time{} // what comes due meanwhile is looked at when it ends
	}
	for !s.isFull() {
		t, at, next := s.first()
		if t == nil {
			s.counts.throttled = !next.IsZero()
			return sooner(next, s.due())
		}
		s.send(ctx, t, at)
	}
	if v := &s.route.servers[0]; s.queue.size() > s.health.Awaiting() && !v.Out() {
		v.Waits()                          // for a slot
		s.counts.full = !s.shortage.isOn() // in a shortage this machine is the limit, not the pool's size
	}
	return s.due()
}

// isFull reports whether every slot that there is now is taken.
func (s *scheduler) isFull() bool {
	return s.counts.InFlight+s.cfg.Unkept() >= s.shortage.slots(s.tick, s.cfg.Size)
}

// send takes t, which is first, out of its line and hands it to a worker for an attempt
// at one of the servers.
func (s *scheduler) send(ctx context.Context, t *task, at int) {
	v := &s.route.servers[at]
	if t.started.IsZero() && s.cfg.RowTimeout > 0 {
		t.deadline = s.pauses.clock.running(s.tick).Add(s.cfg.RowTimeout)
	}
	s.queue.take(t, s.tick)
	t.att.Number++
	b := s.breaker(at)
	t.att.Probe = b.IsOpen()
	if t.att.Probe {
		b.ProbeSent(s.tick, &t.Job, s.cfg.ProbeInterval)
	}
	t.att.Server, t.att.Failures = at, t.Failures()
	law := v.law.Stats()
	t.att.DispatchDelay, t.att.Belief, t.att.Throttled = law.CurrentDelay, law.Belief, s.counts.ThrottleTime
	t.att.Dispatched = s.tick
	s.counts.Dispatched++
	s.counts.InFlight++
	s.counts.MaxConcurrent = max(s.counts.MaxConcurrent, s.counts.InFlight)
	v.sent(s.tick, t)
	s.crew.call(ctx, t, s.counts.InFlight)
}

// settle acts on the verdict on the attempt at t that has ended.
func (s *scheduler) settle(t *task) {
	s.counts.InFlight--
	s.counts.ExecTime += t.ended.Sub(t.att.Dispatched)
	if t.exited {
		s.crew.size--
	}
	v := &t.verdict
	if v.Err == nil && v.Class != OK {
		v.Err = errNoReason
	}
	if v.Unsent && (v.Class == Fatal || v.Class == Cancelled) {
		t.att.Number--
		s.counts.Dispatched--
	}
	over := s.route.servers[t.att.Server].ended(s.tick, t)
	if s.pauses.settle(s.tick, &t.Job, v) {
		s.resume()
	}
	if over {
		s.delayAgain()
		s.showPause()
	}
	s.settleDoubts()
	if t.Single {
		s.settleSingle(t)
		return
	}
	switch v.Class {
	case OK:
		s.counts.Successes++
		s.finish(t, nil, OK, t.ended)
	case Capacity:
		s.counts.CapacityRetries++
		t.att.CapacityRetries++
		wait := v.Hint.RetryAfter
		if t.Server() != t.att.Server {
			wait = 0 // another server than the one it waits for asked for that
		}
		s.again(t, max(wait, t.RefusedWait(s.cfg.ProbeInterval)))
	case Transient, Permanent:
		s.failed(t)
	case Fatal:
		s.fatal(t)
	case Cancelled:
		s.finish(t, fmt.Errorf("%w: %w", ErrHandedBack, v.Err), Cancelled, t.ended)
	default: // a Func that returns an unknown class must not lose its job
		s.finish(t, fmt.Errorf("unknown %v: %w", v.Class, v.Err), Permanent, t.ended)
	}
}

// settleSingle ends a single attempt, whatever its verdict.
func (s *scheduler) settleSingle(t *task) {
	v := &t.verdict
	if v.Class == OK {
		s.counts.Successes++
		v.Err = nil
	}
	if v.Class == Capacity {
		s.counts.CapacityRetries++
		t.att.CapacityRetries++
	}
	s.finish(t, v.Err, v.Class, t.ended)
}

// failed acts on a transient or permanent error of t.
func (s *scheduler) failed(t *task) {
	if t.verdict.Origin == OfHost {
		s.limitCalls(t)
		return
	}
	at := t.att.Server
	decision := s.route.servers[at].Failed(s.tick, &t.Job, s.others())
	s.settleDoubts()
	switch decision {
	case health.Void:
		s.queue.putBack(t)
	case health.Outage:
		s.queue.putBack(t)
		s.outageBegan(at)
	case health.Hold:
		s.hold(t)
	case health.Count:
		if t.UsedUp() {
			s.lose(t)
		} else {
			s.again(t, s.backoff(t))
		}
	}
}

// hold makes t, whose last failure is in doubt, wait for its next attempt. If it has none
// left it continues at the next server, or waits until the doubt is settled.
func (s *scheduler) hold(t *task) {
	switch {
	case !t.UsedUp():
		wait := s.backoff(t)
		t.until = s.tick.Add(wait + health.WitnessWait)
		s.again(t, wait)
	case !t.Final() && s.route.behind(s.tick, t) >= 0:
		s.moveOn(t)
	default:
		s.health.Await(&t.Job)
		s.again(t, lookEvery)
	}
}

// backoff returns how long t waits for its next attempt after a failure.
func (s *scheduler) backoff(t *task) time.Duration {
	return max(s.cfg.Retry.Wait(s.health.Tries(&t.Job), s.cfg.Rand()), t.verdict.Hint.RetryAfter)
}

// settleDoubts acts on what an event has settled about jobs whose failures were in doubt.
func (s *scheduler) settleDoubts() {
	for _, j := range s.health.Settled() {
		t := j.Owner.(*task)
		switch {
		case !s.queue.delayed.take(t):
		case t.UsedUp():
			s.queue.vacate(t)
			s.lose(t)
		default:
			s.queue.makeReady(t)
		}
	}
}

// lose fails t, or moves it to the next server, for failures that are its own.
func (s *scheduler) lose(t *task) {
	switch at := t.att.Server; {
	case s.route.servers[at].Lost(&t.Job):
		s.queue.putBack(t)
		s.settleDoubts()
		s.pauseAll(WrongSettings, at, t.verdict.Err, nil)
	case t.verdict.Class == Permanent:
		s.finish(t, t.verdict.Err, Permanent, t.ended)
	default:
		s.moveOn(t)
	}
}

// lookAtServers acts on what has waited for calls in flight to end or grow old.
func (s *scheduler) lookAtServers() {
	for i := range s.route.servers {
		v := &s.route.servers[i]
		if !s.pauses.own() {
			if err := v.BlamesSettings(); err != nil {
				s.settleDoubts()
				s.pauseAll(WrongSettings, i, err, nil)
			}
		}
		if v.Look(s.tick) == health.Outage {
			s.settleDoubts()
			s.outageBegan(i)
		}
	}
}

// fatal pauses the pool for a fatal verdict on t, or moves t elsewhere.
func (s *scheduler) fatal(t *task) {
	at := t.att.Server
	pauses := t.verdict.Unsent || at == 0 && !s.cfg.FailOnFatal
	if s.pauses.breaker.IsProbe(&t.Job) && !pauses {
		s.resume()
	}
	switch {
	case pauses && s.stopping:
		s.again(t, 0) // to be handed back
	case pauses:
		s.queue.putBack(t)
		s.pauseAll(FatalError, at, t.verdict.Err, &t.Job)
	case t.Server() < at: // it was sent there for lack of capacity, and keeps waiting for that
		s.route.shut(s.tick, at, t.verdict.Err)
		s.again(t, 0)
	case at > 0:
		s.route.shut(s.tick, at, t.verdict.Err)
		s.moveOn(t)
	default:
		s.moveOn(t)
	}
}

// moveOn moves t, whose attempts at its server are used up, to the next one; behind the
// last it fails.
func (s *scheduler) moveOn(t *task) {
	i := s.route.behind(s.tick, t)
	if i < 0 {
		s.finish(t, t.verdict.Err, t.verdict.Class, t.ended)
		return
	}
	s.health.Move(&t.Job, i)
	s.again(t, 0)
}

// finish reports the end of t to its submitter.
func (s *scheduler) finish(t *task, err error, class Class, at time.Time) {
	s.health.Forget(&t.Job)
	t.work.finish(err, class, at, s.snapshot().Stats)
}

// snapshot returns the counts as of the last event, with the statistics that other parts
// have.
func (s *scheduler) snapshot() counts {
	c, law := s.counts, s.route.servers[0].law.Stats()
	c.Waiting = s.queue.size()
	c.Pause, c.Shortage = s.pauses.present, s.shortage.err
	c.PeakDelay, c.CurrentDelay = law.PeakDelay, law.CurrentDelay
	c.LawPausedUntil, c.LawPauseReason = law.PausedUntil, law.PauseReason
	c.LawConcurrency, c.LawBelief = law.Concurrency, law.Belief
	return c
}

// alarm wakes the scheduler without an event, through the inbox: to wait for one channel
// costs half of what it costs to wait for two.
type alarm struct {
	timer *time.Timer
	at    time.Time // when the timer fires, never later than needed; it has fired if that has passed
}

// set makes the timer fire at wake or before: an extra turn of the loop costs less than
// setting it each time. A zero wake needs no timer.
func (a *alarm) set(now, wake time.Time) {
	if wake.IsZero() || a.at.After(now) && !a.at.After(wake) {
		return
	}
	a.timer.Reset(wake.Sub(now))
	a.at = wake
}
