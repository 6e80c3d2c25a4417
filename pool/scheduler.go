package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
// Ready jobs and laws are kept per server: see [server]. Package health decides what the
// ends of attempts mean. The methods are in three files: this one has the loop and the
// verdicts, queue.go the order in which jobs go, pause.go what stops all of them.
type scheduler struct {
	cfg    Config
	inbox  *inbox
	crew   crew
	health *health.Monitor

	// Queues: between turns a job that is not in flight is in exactly one of fresh,
	// delayed and the ready heap of its server.
	servers []server // the first one and its fallbacks, with the jobs that may have their next attempt
	fresh   fifo     // jobs without an attempt
	delayed taskHeap // jobs that must wait for theirs, by the instant to look at them again
	indexes uint64   // indexes assigned so far; they rise in the order of first attempts

	// Pauses: counts.Pause.Kind is NotPaused exactly while no pause holds the jobs;
	// deadlines stand still while one does.
	pause      pause         // of the whole pool; outages are in the health of the servers
	halt       Pause         // an operator's, whatever else holds the pool; zero if there is none
	pauseSince time.Time     // when the present pause began
	pausedFor  time.Duration // all pauses that have ended
	shortage   shortage

	// This turn of the loop: all that happens in it happens at tick.
	finishing bool      // no more jobs will come; never false again
	stopping  bool      // jobs that wait are handed back; never false again
	counts    Stats     // all that is counted; snapshot adds the rest
	tick      time.Time // when the inbox was last emptied; the loop reads the clock there only
	throttled bool      // since tick a job was ready and a slot free, but the law made them wait
	full      bool      // since tick a job waited and every slot of the pool was taken
	vacated   bool      // since tick a job left the queue
	questions []question

	alarm alarm
	shown shown
}

func newScheduler(cfg Config) (*scheduler, error) {
	m := health.New(health.Config{
		Servers:       1 + len(cfg.Fallbacks),
		Sequential:    cfg.Size == 1,
		Attempts:      cfg.Retry.MaxAttempts,
		BlameSettings: !cfg.FailOnFatal,
		SlowAfter:     cfg.FallbackAfter,
		ProbeInterval: cfg.ProbeInterval,
	})
	servers, err := newServers(cfg, m)
	if err != nil {
		return nil, err
	}
	in := newInbox(cfg.QueueLimit, cfg.Size)
	s := &scheduler{
		cfg:     cfg,
		inbox:   in,
		crew:    crew{work: make(chan *task), inbox: in},
		health:  m,
		servers: servers,
		delayed: taskHeap{less: wakesEarlier},
		counts:  Stats{PoolSize: cfg.Size},
	}
	s.shown.stats = s.snapshot()
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
		s.takeUp()
		if s.stopping {
			s.handBack(func(*task) bool { return true })
		}
		s.release()
		s.lookAtServers()
		s.failOverdue()
		s.showPause()
		wake := s.dispatch(ctx)
		s.publish()
		s.answer()
		if s.vacated {
			s.vacated = false
			s.cfg.OnRoom()
		}
		if s.finishing && s.counts.InFlight == 0 && s.waiting() == 0 {
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

// takeUp empties the inbox. It reads the clock, once a turn: all that follows from what
// it found there happens at one instant.
func (s *scheduler) takeUp() {
	in := s.inbox.take()
	s.finishing, s.stopping = in.closed, in.draining
	now := time.Now()
	if s.throttled {
		s.counts.ThrottleTime += now.Sub(s.tick)
	}
	if s.full {
		s.counts.FullTime += now.Sub(s.tick)
	}
	for i := range s.servers[:len(s.servers)-1] { // none is behind the last
		s.servers[i].Turn(s.tick, now)
	}
	s.tick = now
	if in.halt != nil {
		s.setHalt(in.halt.why)
	}
	if in.probe {
		s.probeNow()
	}
	for in.jobs.head != nil {
		t := in.jobs.pop()
		t.att.Queued = now
		t.arrived = sooner(t.arrived, now)
		if t.Single && s.anyPause() {
			s.vacate(t)
			s.refuse(t)
			continue
		}
		s.fresh.push(t)
	}
	for in.ended.head != nil { // behind the new jobs, which may settle whose failure one is
		s.settle(in.ended.pop())
	}
	if in.recall != nil {
		s.handBack(in.recall)
	}
	s.questions = in.questions
}

// dispatch sends what may go now. It returns the instant at which to run again without an
// event; zero means never.
func (s *scheduler) dispatch(ctx context.Context) (wake time.Time) {
	s.throttled, s.full = false, false
	if s.halted() {
		return time.Time{} // what comes due meanwhile is looked at when it ends
	}
	for s.counts.InFlight+s.cfg.Unkept() < s.slots() {
		t, at, next := s.first()
		if t == nil {
			s.throttled = !next.IsZero()
			return sooner(next, s.due())
		}
		s.send(ctx, t, at)
	}
	if v := &s.servers[0]; s.waiting() > s.health.Awaiting() && !v.Out() {
		v.Waits()                     // for a slot
		s.full = s.shortage.room == 0 // else this machine is the limit, not the pool's size
	}
	return s.due()
}

// send takes t, which is first, out of its line and hands it to a worker for an attempt
// at one of the servers.
func (s *scheduler) send(ctx context.Context, t *task, at int) {
	v := &s.servers[at]
	s.vacate(t)
	if t.started.IsZero() {
		s.start(t)
	} else {
		s.servers[t.Server()].ready.take(t)
	}
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

// start takes t, which is first among the new ones, out of their line.
func (s *scheduler) start(t *task) {
	s.fresh.take(t)
	t.index = s.indexes
	s.indexes++
	t.started = s.tick
	if s.cfg.RowTimeout > 0 {
		t.deadline = s.running().Add(s.cfg.RowTimeout)
	}
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
	over := s.servers[t.att.Server].ended(s.tick, t)
	if s.pause.IsProbe(&t.Job) {
		s.settleProbe(t)
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
	decision := s.servers[at].Failed(s.tick, &t.Job, s.others())
	s.settleDoubts()
	switch decision {
	case health.Void:
		s.putBack(t)
	case health.Outage:
		s.putBack(t)
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
	case !t.Final() && s.nextServer(t) >= 0:
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
		case !s.delayed.take(t):
		case t.UsedUp():
			s.vacate(t)
			s.lose(t)
		default:
			s.servers[t.Server()].ready.push(t)
		}
	}
}

// lose fails t, or moves it to the next server, for failures that are its own.
func (s *scheduler) lose(t *task) {
	switch at := t.att.Server; {
	case s.servers[at].Lost(&t.Job):
		s.putBack(t)
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
	for i := range s.servers {
		v := &s.servers[i]
		if !s.paused() {
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
	if s.pause.IsProbe(&t.Job) && !pauses {
		s.resume()
	}
	switch {
	case pauses && s.stopping:
		s.again(t, 0) // to be handed back
	case pauses:
		s.putBack(t)
		s.pauseAll(FatalError, at, t.verdict.Err, &t.Job)
	case at > 0:
		s.skipServer(t)
	default:
		s.moveOn(t)
	}
}

// finish reports the end of t to its submitter.
func (s *scheduler) finish(t *task, err error, class Class, at time.Time) {
	s.health.Forget(&t.Job)
	t.work.finish(err, class, at, s.snapshot())
}

// snapshot returns the statistics as of the last event.
func (s *scheduler) snapshot() Stats {
	stats, law := s.counts, s.servers[0].law.Stats()
	stats.Waiting = s.waiting()
	stats.PeakDelay, stats.CurrentDelay = law.PeakDelay, law.CurrentDelay
	stats.LawPausedUntil, stats.LawPauseReason = law.PausedUntil, law.PauseReason
	stats.LawConcurrency, stats.LawBelief = law.Concurrency, law.Belief
	return stats
}

// publish makes the present state visible to callers of Stats.
func (s *scheduler) publish() {
	stats := s.snapshot()
	s.shown.mu.Lock()
	defer s.shown.mu.Unlock()
	s.shown.stats, s.shown.tick, s.shown.throttled, s.shown.full = stats, s.tick, s.throttled, s.full
}

// shown is the state that callers of Stats see.
type shown struct {
	mu        sync.Mutex // held for the time of a copy
	stats     Stats
	tick      time.Time
	throttled bool
	full      bool
}

func (v *shown) now() Stats {
	v.mu.Lock()
	defer v.mu.Unlock()
	stats := v.stats
	if v.throttled {
		stats.ThrottleTime += time.Since(v.tick)
	}
	if v.full {
		stats.FullTime += time.Since(v.tick)
	}
	return stats
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
