package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var errNoReason = errors.New("call failed without a reason")

// scheduler is the one goroutine that owns the state of a pool: it takes jobs, decides which attempt goes when, and
// acts on the verdicts. The calls themselves run on workers. Other goroutines touch inbox, work, wg and shown only.
//
//	inbox ─> fresh (by turns) ───┐
//	           ready (oldest) ───┴─ law ─> workers ─> inbox ─> settle ─> finish
//	delayed ────┘  └─────────────── after a fatal error ─────────┤
//	   └─────────────────────────── again, after a wait ─────────┘
//
// Ready jobs and laws are kept per server: see [server].
type scheduler struct {
	cfg   Config
	inbox *inbox

	// Workers: counts.InFlight <= workers <= cfg.Size, so that a send on work, which is unbuffered, finds an idle one.
	work    chan *task
	workers int
	wg      sync.WaitGroup

	// Queues: between turns a job that is not in flight is in exactly one of fresh, delayed and the ready heap of its
	// server.
	servers []server // the first one and its fallbacks, with the jobs that may have their next attempt
	fresh   line     // jobs without an attempt
	delayed taskHeap // jobs that must wait for theirs, by the instant to look at them again
	indexes uint64   // indexes assigned so far; they rise in the order of first attempts

	// Pauses: counts.Pause.Kind is NotPaused exactly while no pause holds the jobs; deadlines stand still while one
	// does.
	pause     breaker       // of the whole pool; those of outages are the servers'
	heldSince time.Time     // when the present pause began
	heldFor   time.Duration // all pauses that have ended
	probes    int           // sent so far, by all breakers; never falls
	shortage  shortage
	halt      Pause // an operator's, whatever the breakers say; zero: there is none

	// Doubt: each counts a flag of the tasks that have not ended.
	marked int // task.marked: jobs that have failed, in doubt or not
	parked int // task.doubt.parked: jobs that wait for a verdict on another one

	// This turn of the loop: all that happens in it happens at tick.
	stopping  bool      // never false again
	counts    Stats     // all that is counted; snapshot adds the rest
	tick      time.Time // when the inbox was last emptied; the loop reads the clock there only
	throttled bool      // since tick a job was ready and a slot free, but the law made them wait
	full      bool      // since tick a job waited and every slot of the pool was taken
	vacated   bool      // since tick a job left the queue

	timer *time.Timer
	armed time.Time // when the timer fires, never later than needed; zero: not set

	mu    sync.Mutex // guards shown, which Stats reads, for the time of a copy
	shown struct {
		stats     Stats
		tick      time.Time
		throttled bool
		full      bool
	}
}

func newScheduler(cfg Config, servers []server) *scheduler {
	s := &scheduler{
		cfg:     cfg,
		inbox:   newInbox(cfg.QueueLimit),
		work:    make(chan *task),
		servers: servers,
		fresh:   line{lanes: make(map[int]*lane)},
		delayed: taskHeap{less: wakesEarlier},
		counts:  Stats{PoolSize: cfg.Size},
	}
	s.shown.stats = s.snapshot()
	return s
}

func (s *scheduler) run(ctx context.Context) error {
	defer s.wg.Wait()
	defer close(s.work)
	defer context.AfterFunc(ctx, s.inbox.stop)()
	s.timer = time.NewTimer(time.Hour) // armed is zero, so the first use resets it
	defer s.timer.Stop()

	for {
		if ctx.Err() != nil { // AfterFunc may be late, and no call may start with a cancelled context
			s.inbox.stop()
		}
		s.takeUp()
		if s.stopping {
			all := func(*task) bool { return true }
			s.handBack(all)
			s.dropSingles(all)
		}
		s.release()
		s.judge()
		s.endHolds()
		s.showPause()
		wake := s.dispatch(ctx)
		s.publish()
		if s.vacated && !s.fresh.ample(s.cfg.QueueLimit) {
			s.vacated = false
			s.cfg.OnRoom()
		}
		if s.stopping && s.counts.InFlight == 0 {
			break
		}
		s.setTimer(wake)
		select {
		case <-s.inbox.wake:
		case <-s.timer.C:
			s.armed = time.Time{}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// takeUp empties the inbox. It reads the clock, once a turn: all that follows from what it found there happens at one
// instant.
func (s *scheduler) takeUp() {
	in := s.inbox.take()
	s.stopping = in.closed
	now := time.Now()
	if s.throttled {
		s.counts.ThrottleTime += now.Sub(s.tick)
	}
	if s.full {
		s.counts.FullTime += now.Sub(s.tick)
	}
	for i := range s.servers[:len(s.servers)-1] { // none is behind the last
		s.servers[i].pace.turn(s.tick, now, s.cfg.FallbackAfter)
	}
	s.tick = now
	if in.halt != nil {
		s.setHalt(in.halt.why)
	}
	if in.probe {
		s.probeNow()
	}
	for in.ended.head != nil {
		s.settle(in.ended.pop())
	}
	for in.jobs.head != nil {
		t := in.jobs.pop()
		t.att.Queued = now
		t.arrived = sooner(t.arrived, now)
		if t.once && s.held() {
			s.refuse(t)
			continue
		}
		s.fresh.push(t)
	}
	if in.withdrawn { // while no attempt can go they would pile up
		s.dropSingles((*task).withdrawn)
	}
	if in.recall != nil {
		s.handBack(in.recall)
	}
}

// dispatch sends what may go now. It returns the instant at which to run again without an event; zero: never.
func (s *scheduler) dispatch(ctx context.Context) (wake time.Time) {
	s.throttled, s.full = false, false
	if s.halted() {
		return time.Time{} // what comes due meanwhile is looked at when it ends
	}
	for s.counts.InFlight+s.cfg.Held() < s.slots() {
		t, at, next := s.first()
		if t == nil {
			s.throttled = !next.IsZero()
			return sooner(next, s.due())
		}
		s.send(ctx, t, at)
	}
	if v := &s.servers[0]; s.waiting() > s.parked && !v.out() {
		v.pace.waits = true           // for a slot
		s.full = s.shortage.room == 0 // else this machine is the limit, not the pool's size
	}
	return s.due()
}

// send takes t, which is first, out of its line and hands it to a worker for an attempt at one of the servers.
func (s *scheduler) send(ctx context.Context, t *task, at int) {
	v := &s.servers[at]
	if t.started.IsZero() {
		s.start(t)
	} else {
		s.servers[t.server].ready.take(t)
	}
	if !t.once {
		s.vacate(t)
	}
	t.att.Number++
	b := &v.breaker
	if s.paused() {
		b = &s.pause
	}
	t.att.Probe = b.isOpen()
	if t.att.Probe {
		s.probes++
		t.probed = s.probes
		b.probeSent(s.tick, t, s.cfg.ProbeInterval)
	}
	t.att.Server, t.att.Failures = at, t.failures
	t.att.DispatchDelay = v.law.Stats().CurrentDelay
	t.att.Dispatched = s.tick
	s.counts.Dispatched++
	s.counts.InFlight++
	s.counts.MaxConcurrent = max(s.counts.MaxConcurrent, s.counts.InFlight)
	v.sent(s.tick, t)
	if s.counts.InFlight <= s.workers {
		s.work <- t
		return
	}
	s.workers++
	s.wg.Go(func() { s.serve(ctx, t) })
}

// start takes t, which is first among the new ones, out of their line.
func (s *scheduler) start(t *task) {
	s.fresh.take(t)
	t.index = s.indexes
	s.indexes++
	t.started = s.tick
	if s.cfg.RowTimeout > 0 && !t.once {
		t.deadline = s.running().Add(s.cfg.RowTimeout)
	}
}

// settle acts on the verdict on the attempt at t that has ended.
func (s *scheduler) settle(t *task) {
	s.counts.InFlight--
	s.counts.ExecTime += t.ended.Sub(t.att.Dispatched)
	if t.exited {
		s.workers--
	}
	v := &t.verdict
	if v.Err == nil && v.Class != OK {
		v.Err = errNoReason
	}
	if v.Unsent && (v.Class == Fatal || v.Class == Cancelled) {
		t.att.Number--
		s.counts.Dispatched--
	}
	isolated := t.att.Server == t.server && s.servers[t.server].learn(t)
	s.servers[t.att.Server].ended(s.tick, t)
	if isolated {
		s.servers[t.server].law.Restart(s.tick)
	}
	if t == s.pause.probe {
		s.settleProbe(t)
	}
	if s.servers[t.att.Server].out() {
		s.settleOutage(t)
	}
	if v.Class == OK {
		s.succeeded(t)
	}
	if t.once {
		s.settleOnce(t)
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
		if t.server != t.att.Server {
			wait = 0 // another server than the one it waits for asked for that
		}
		s.again(t, max(wait, t.refusals.wait(s.cfg.ProbeInterval)))
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

// failed acts on a transient or permanent error of t.
func (s *scheduler) failed(t *task) {
	switch {
	case t.verdict.Origin == OfHost:
		s.limitCalls(t)
	case t.verdict.inDoubt() || s.maybeSettings(t):
		s.doubt(t)
	case t.verdict.Class == Permanent:
		s.lose(t)
	default:
		s.transient(t)
	}
}

// transient counts a transient error of t against the server that it came from.
func (s *scheduler) transient(t *task) {
	if t.server != t.att.Server { // sent there for lack of capacity; now it belongs there
		s.moveTo(t, t.att.Server)
	}
	s.mark(t, true)
	t.failures++
	if t.failures < s.cfg.Retry.MaxAttempts {
		s.again(t, max(s.cfg.Retry.Wait(t.failures, s.cfg.Rand()), t.verdict.Hint.RetryAfter))
		return
	}
	s.lose(t)
}

// fatal pauses the pool for a fatal verdict on t, or moves t elsewhere.
func (s *scheduler) fatal(t *task) {
	at := t.att.Server
	pauses := t.verdict.Unsent || at == 0 && s.cfg.OnFatal == HoldAll
	if t == s.pause.probe && !pauses {
		s.resume()
	}
	switch {
	case pauses && s.stopping:
		s.again(t, 0) // to be handed back
	case pauses:
		s.putBack(t)
		s.pauseAll(FatalError, at, t.verdict.Err, t)
	case at > 0:
		s.skipServer(t)
	default:
		s.moveOn(t)
	}
}

// finish reports the end of t to its submitter.
func (s *scheduler) finish(t *task, err error, class Class, at time.Time) {
	s.forget(t)
	s.servers[t.server].forgive(t)
	t.work.finish(err, class, at, s.snapshot())
}

// setTimer makes the timer fire at wake or before: an extra turn of the loop costs less than setting it each time.
func (s *scheduler) setTimer(wake time.Time) {
	if wake.IsZero() || !s.armed.IsZero() && !s.armed.After(wake) {
		return
	}
	s.timer.Reset(wake.Sub(s.tick))
	s.armed = wake
}

// snapshot returns the statistics as of the last event.
func (s *scheduler) snapshot() Stats {
	stats, law := s.counts, s.servers[0].law.Stats()
	stats.Waiting = s.waiting()
	stats.PeakDelay, stats.CurrentDelay = law.PeakDelay, law.CurrentDelay
	stats.LawPausedUntil, stats.LawPauseReason = law.PausedUntil, law.PauseReason
	stats.LawConcurrency = law.Concurrency
	return stats
}

// publish makes the present state visible to stats.
func (s *scheduler) publish() {
	stats := s.snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.stats, s.shown.tick, s.shown.throttled, s.shown.full = stats, s.tick, s.throttled, s.full
}

func (s *scheduler) stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.shown.stats
	if s.shown.throttled {
		stats.ThrottleTime += time.Since(s.shown.tick)
	}
	if s.shown.full {
		stats.FullTime += time.Since(s.shown.tick)
	}
	return stats
}
