package aimd

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Adaptive is the law that stays close to the server's true capacity. It sets the rate of
// attempts, measures what the server admits whenever it refuses, cruises at that, and
// from time to time climbs until the next refusal, to see whether there is more. It also
// finds out whether the server limits the attempts in flight rather than their rate, and
// whether it refuses at random.
//
//	             refused                    accepted
//	┌───────┐ ───────────> ┌─────────┐ ─────────────────> ┌────────┐
//	│ start │              │  drain  │                    │ cruise │
//	└───────┘ <─────────── └─────────┘ <───────────────── └────────┘
//	   accepted after an outage  │ ▲        refused
//	                             ▼ │ refused where there should have been room
//	                          ┌───────┐
//	                          │ probe │ are these refusals about the rate at all?
//	                          └───────┘
//
// The page docs/throttle.md explains it and shows it at work. Files: the rate in each
// phase here, the measurement, others that use the server and the sense of time in
// adaptive_estimate.go, limits on attempts in flight in adaptive_slots.go, sporadic
// refusals in adaptive_sporadic.go, a server that refuses many at random in
// adaptive_noise.go, how that is found out in adaptive_probe.go, the server's hints in
// adaptive_hint.go, a server that refuses none and lets them wait in adaptive_queue.go.
//
// Its methods take instants that never go back, and are for one goroutine.
type Adaptive struct {
	cfg  AdaptiveConfig
	pace float64 // the factor by which RecoveryStep stretches all times of the law: 1 for 50 ms, 2 for 25 ms

	clock
	phase    Phase
	since    float64 // when the phase began
	before   int     // the seq of the last attempt before that
	estimate float64 // the server's rate as last measured, per second; 0 means never
	bounds   bounds  // what is known about how far the estimate may be off
	replies  int     // attempts accepted since the phase began; start speeds up by them
	epoch    epoch
	due      float64 // when the last attempt went, or should have gone

	restarted float64 // when Restart was last called; measurements skip attempts sent before it

	limit  float64 // the most that the rate may be, per second; 0 means see Limit
	shared bool    // see Share

	history history
	mark    mark // where the next measurement begins: the latest refused attempt, or the first after a restart
	callSec mean // seconds that an accepted attempt takes
	refusal refusalTime
	loss    loss

	slots slots
	queue queue
	noise noise
	spare spare
	pause pause
	stats Stats
}

// clock is the law's sense of time: its instants are in seconds since the first one that
// was passed in.
type clock struct {
	begin time.Time
	now   float64 // the last instant that was passed in; it never goes back
}

func (c *clock) arrive(now time.Time) {
	if c.begin.IsZero() {
		c.begin = now
	}
	c.now = now.Sub(c.begin).Seconds()
}

// instant returns the instant that is so many seconds after the first.
func (c *clock) instant(sec float64) time.Time { return c.begin.Add(seconds(sec)) }

// epoch is the time since a refusal changed the rate. Attempts that were sent before know
// nothing of that refusal, so those that are refused teach no more than it did.
type epoch struct {
	number   int     // counts the refusals that changed the rate
	failures int     // such refusals since an attempt of the current epoch was last accepted
	cuts     float64 // the power of the multiplier that divides the estimate in drain; 1/3 after a climb
	witness  float64 // when drain's first attempt went; drain ends if it is not refused in time; none if it has not gone
}

// heal notes that the server accepts attempts, or that its refusals are explained.
func (e *epoch) heal() { e.failures, e.cuts = 0, 0 }

// AdaptiveConfig sets up an [Adaptive] law. Start from [DefaultAdaptive]: the zero value
// is not valid.
type AdaptiveConfig struct {
	// Config has the four settings. Here MinDelay and MaxDelay bound the delay between
	// dispatches, which is the inverse of the rate; Multiplier divides the rate after a
	// capacity error; and RecoveryStep sets how fast the law climbs again: all its waits
	// are inversely proportional to it. At 0 it never climbs above what it measured.
	Config
	// PoolSize is the most attempts that may be in flight, at least 1. A rate that this
	// many slots could never use is no limit, so from there on the law does not pace.
	PoolSize int
	// SureSilence is for callers that learn of some refusals late. An attempt that has met
	// no refusal for this long counts as accepted, or for as long as refusals are known to
	// take, whichever is longer. It applies where much depends on it: after two refusals
	// in a row, in probes, in pauses, and where noise is measured. 0 adds nothing.
	SureSilence time.Duration
	// KeepConcurrency is for callers that do not know when exactly attempts end: the law
	// then does not look for the concurrency of servers that queue.
	KeepConcurrency bool
	// Rand draws the jitter of shared pauses, uniform in [0, 1), and is called from the
	// law's goroutine. If it is nil, pauses have no jitter.
	Rand func() float64
}

// validate returns nil, or all problems of c joined into one error, each naming its field.
func (c AdaptiveConfig) validate() error {
	err := c.Config.validate()
	if c.PoolSize < 1 {
		err = errors.Join(err, fmt.Errorf("aimd: PoolSize is %d, must be at least 1", c.PoolSize))
	}
	return err
}

// A Phase is what an [Adaptive] law is doing.
type Phase uint8

const (
	// Start has no measurement of the server, or none that still holds, and speeds up
	// until the first refusal.
	Start Phase = iota
	// Drain has been refused, and goes slowly until the server has accepted an attempt
	// that was sent since.
	Drain
	// Cruise keeps the rate that was measured, for a while, then climbs until it is
	// refused.
	Cruise
	// Probe sends a few attempts at once, to tell a limit from refusals at random. It ends
	// in Drain if all are refused, in Start if the law is sure of noise now or if an
	// outage is over, else in Cruise.
	Probe
)

var phaseNames = [...]string{"start", "drain", "cruise", "probe"}

// String returns the phase in lower case.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// The constants of the phases. The other rules have theirs in their files. All were
// found by simulation against the servers of test/throttle, whose figures.md has what the
// law reaches with them.
const (
	// A call every 125 ms at first, so that a server with a very low limit is not flooded.
	startRate = 8.0
	// Doubling in 0.6 s reaches 20/s in 0.8 s, before the first reply of a call that takes
	// a second.
	startDoubling = 0.6
	// How long to hold the measured rate, and then to climb to twice that, where the
	// server allows referenceRate or more. Each climb ends in a refusal: at 20/s these
	// make one in about 70 calls.
	cruiseSec     = 2.35
	referenceRate = 20.0
	// The first refusal of a climb divides the rate by the multiplier to this power: with
	// a multiplier of 2, by 1.26. A full cut would be wasteful, since the server needs
	// little time to recover, and one without a bucket doesn't hand out later what was
	// not sent now.
	firstCut = 1.0 / 3
	// After this many refusals that changed the rate, without one accepted attempt between
	// them, it was an outage, and the old estimate is void.
	outageFailures = 3
	// The pool is the limit where the rate would fill its slots this many times over, with
	// calls that take a second at most: with 10 slots from 40/s. More than once, as the
	// replies may get faster, or fail fast.
	ceilingFills = 4.0
	// An attempt that goes late gains up to this share of the delay on the next, so that
	// late timers do not lower the rate.
	lateness = 0.2

	none = -1.0 // an instant that has not come
)

// DefaultAdaptive returns the default settings for a pool of that size: four of
// [Default], and no other.
func DefaultAdaptive(poolSize int) AdaptiveConfig {
	return AdaptiveConfig{Config: Default(), PoolSize: poolSize}
}

// NewAdaptive returns a law in the phase [Start], or all problems of cfg joined into one
// error.
func NewAdaptive(cfg AdaptiveConfig) (*Adaptive, error) {
	err := cfg.validate()
	if err != nil {
		return nil, err
	}
	l := &Adaptive{
		cfg:     cfg,
		pace:    (50 * time.Millisecond).Seconds() / cfg.RecoveryStep.Seconds(), // infinite for 0
		due:     math.Inf(-1),
		epoch:   epoch{witness: none},
		history: newHistory(cfg.PoolSize),
		callSec: newCallTime(),
	}
	l.noise.base = noiseGone
	l.note()
	return l, nil
}

// Next returns the instant at which one attempt may go, now at the earliest. Call it
// again at that instant, and after each verdict: the law acts on the passing of time,
// too, only when it is called.
func (l *Adaptive) Next(now time.Time, inFlight int) time.Time {
	l.arrive(now)
	l.noise.settle(l)
	l.judgeSilence()
	l.noise.suspicion.start(l, inFlight)
	at := max(l.mayGo(), l.pause.opens(l), l.slots.opens(inFlight), l.queue.opens(l.now, inFlight))
	if at <= l.now {
		return now
	}
	return now.Add(time.Duration(math.Ceil(min(at-l.now, farSec) * 1e9))) // rounded up, so never now
}

// farSec is an instant too far away to matter, in seconds from now.
const farSec = 3600

// mayGo returns when the rate allows the next attempt, or when the law will know more.
func (l *Adaptive) mayGo() float64 {
	if l.phase == Probe {
		return l.noise.suspicion.probe.mayGo(l)
	}
	at := l.due + l.delay(l.now)
	if at > l.now {
		at = l.due + l.delay(at) // the rate rises while it waits
	}
	if l.phase == Drain && l.epoch.witness != none {
		at = min(at, l.drained())
	}
	return at
}

// Sent records that an attempt goes now, with inFlight in flight, this one included.
func (l *Adaptive) Sent(now time.Time, inFlight int) Ticket {
	l.arrive(now)
	d := l.delay(l.now)
	l.discountIdle(l.now-l.due-d, d, inFlight)
	l.due = max(l.due+d, l.now-lateness*d)
	canary := l.pause.sends(l)
	if l.phase == Drain && l.epoch.witness == none && !canary {
		l.epoch.witness = l.now
	}
	m := mark{
		canary: canary,
		seq:    l.history.add(sending{at: l.now, level: inFlight, phase: l.phase, held: l.holds(l.now)}),
		epoch:  l.epoch.number,
		at:     l.now,
		rate:   min(l.rate(l.now), l.ceiling()) * (1 - l.noise.share()),
		probe:  l.noise.suspicion.probe.sends(l),

		cohort: l.queue.sent(l, inFlight),
	}
	if m.seq == 1 {
		l.mark.at = m.at // the first measurement begins here
	}
	l.note()
	return Ticket{Sent: now, InFlight: inFlight, mark: m}
}

// discountIdle takes time without anything to send off the age of the phase. Such a climb
// is no evidence, and the next burst of work would be sent at an untested rate; TCP does
// the same. Time with all slots taken still counts: the rate is then no limit.
func (l *Adaptive) discountIdle(idle, delay float64, inFlight int) {
	full := inFlight >= l.cfg.PoolSize || l.slots.limit > 0 && inFlight >= l.slots.at(l.now) || l.queue.full(inFlight)
	if idle <= delay || full || math.IsInf(idle, 1) {
		return
	}
	l.since += idle
	l.slots.since += idle
}

// Accepted records a success, or any other reply that was no capacity error.
func (l *Adaptive) Accepted(now time.Time, t Ticket) {
	l.arrive(now)
	l.stats.Successes++
	l.replies++
	l.callSec.add(l.now - t.mark.at)
	l.loss.count(0)
	l.queue.ended(l, t)
	l.noise.accepted(l, t.mark)
	l.spare.count(l, 0)
	switch {
	case t.mark.canary && l.pause.flies:
		l.pause.lift(l)
	case l.phase == Drain && t.mark.epoch == l.epoch.number && l.now >= l.rests():
		l.proceed()
	}
	l.note()
}

// Rejected records a capacity error, with the server's hint. One that is no evidence
// about the rate, or no new evidence, changes no rate.
func (l *Adaptive) Rejected(now time.Time, t Ticket, h Hint) {
	l.arrive(now)
	defer l.note()
	l.stats.CapacityRetries++
	l.queue.lost(t.mark)
	if !l.shared || t.mark.epoch == l.epoch.number { // others report a refusal of an old epoch late, so its delay says nothing
		l.refusal.add(l.now - t.mark.at)
	}
	l.history.refuse(t.mark.seq)
	l.loss.count(1)
	slotsKnown := l.slots.limit > 0 // else a few sporadic refusals could look like such a limit
	switch {
	case t.mark.canary:
		l.pause.flies = false
	case t.mark.probe:
		l.noise.suspicion.probe.lost(t.mark)
	case slotsKnown && l.slots.explain(l, t):
	case l.noise.explain(l, t.mark):
		l.spare.count(l, 1)
	case !slotsKnown && l.slots.explain(l, t):
	default:
		l.giveWay(t.mark)
	}
	l.pause.applyHint(l, h)
}

// Dropped records an attempt that ended without a verdict. The law learns nothing from it.
func (l *Adaptive) Dropped(now time.Time, t Ticket) {
	l.arrive(now)
	l.queue.lost(t.mark)
	if l.epoch.witness == t.mark.at {
		l.epoch.witness = none
	}
	if t.mark.canary {
		l.pause.flies = false
	}
	l.note()
}

// Restart returns to the phase [Start], because the server is back after an outage that
// was not about capacity: it accepts attempts again, and its present capacity is unknown.
// The rate grows from a few attempts a second until the first refusal, pauses that the
// server asked for are over, and a refusal of an attempt sent before now lowers no rate.
// What does not depend on the outage stays: how long refusals take, a limit on attempts
// in flight, refusals at random, the statistics.
func (l *Adaptive) Restart(now time.Time) {
	l.arrive(now)
	l.epoch.heal()
	l.epoch.number++ // attempts of before belong to no epoch that is still judged
	l.restarted = l.now
	l.mark = mark{seq: l.history.last, at: l.now} // the next measurement begins here
	l.callSec = newCallTime()                     // failures may have been faster than replies, or slower
	l.noise.spared = 0
	l.noise.suspicion.cancel()
	l.pause = pause{}
	l.queue.restart(l)
	l.enter(Start)
	l.note()
}

// Share tells the law whether others are known to send attempts to the same server. If
// so, it takes more to convince it that the server refuses at random: to each of many
// clients the others look like that, and the first that stopped yielding would take
// everything.
func (l *Adaptive) Share(others bool) { l.shared = others }

// Limit bounds the rate, in attempts per second, beside [Config].MinDelay; 0 means no
// bound.
func (l *Adaptive) Limit(perSec float64) { l.limit = perSec }

// Resume makes the law cruise from now on at a rate that another law has measured, per
// second and above 0.
func (l *Adaptive) Resume(now time.Time, perSec float64) {
	l.arrive(now)
	l.estimate = perSec
	l.bounds = bounds{limited: true, met: none}
	l.epoch.heal()
	l.epoch.number++
	l.enter(Cruise)
	l.note()
}

// Rate returns how many attempts may go per second at an instant that is not before the
// last one that was passed in, if nothing happens until then. In a pause that the server
// asked for it is 0.
func (l *Adaptive) Rate(at time.Time) float64 {
	t := at.Sub(l.begin).Seconds()
	if l.pause.until > t {
		return 0
	}
	return l.rate(t)
}

// Estimate returns the rate of the server as last measured, per second; 0 means never.
func (l *Adaptive) Estimate() float64 { return l.estimate }

// Epoch returns a number that grows with each refusal that changes the rate: one of an
// attempt that went in an earlier epoch is no news.
func (l *Adaptive) Epoch() int { return l.epoch.number }

// Idle takes a time in which there was too little to send off the age of the phase, as
// the law does by itself where whole turns went unused: a climb that nothing tests is no
// evidence.
func (l *Adaptive) Idle(d time.Duration) {
	l.since += d.Seconds()
	l.slots.since += d.Seconds()
	if l.pause.flies {
		l.pause.tried += d.Seconds()
	}
}

// Stats returns the statistics as of the last instant that was passed in. The delay is
// the inverse of the rate: the time between two attempts, pauses apart; 0 while the law
// does not pace.
func (l *Adaptive) Stats() Stats { return l.stats }

// Phase returns the present phase.
func (l *Adaptive) Phase() Phase { return l.phase }

// giveWay measures the server by the refusal of m, cuts the rate and waits for an attempt
// to be accepted. As in TCP this happens once in an epoch. Attempts that were sent before
// the law knew teach no more than the first refusal did: if 30 calls are in flight at a
// limit and all are refused, the rate is cut once.
func (l *Adaptive) giveWay(m mark) {
	measured, sure := l.measure(m)
	if m.seq > l.mark.seq {
		l.mark = m
		l.noise.spared = 0
	}
	if m.epoch != l.epoch.number {
		return
	}
	if l.holds(m.at) || l.phase == Start && m.seq-l.before <= fewCalls {
		l.noise.suspicion.suspect(l, m)
	}
	l.epoch.cuts++
	if l.phase == Cruise && m.rate > l.estimate && !l.noise.on { // expected: the rate is a little above the estimate
		l.epoch.cuts = firstCut
	}
	if l.phase != Drain { // a refusal in drain is more likely bad luck, or another client, than news about the rate
		if l.noise.on {
			measured = min(l.noise.alarm(l, m), m.rate)
		}
		l.estimate = max(measured, l.estimate/l.cfg.Multiplier, 1/l.cfg.MaxDelay.Seconds()) // never 0, as no cruise follows from that
		l.bounds = bounds{limited: true, low: min(sure, l.estimate), high: max(m.rate, l.estimate), met: l.now}
	}
	l.noise.settled = l.history.last // what a limiter has refused is no noise
	l.epoch.number++
	l.epoch.failures++
	l.enter(Drain)
}

// judgeSilence takes an attempt that has met no refusal for as long as refusals take for
// accepted. To wait for its reply instead would cost a second in each epoch.
func (l *Adaptive) judgeSilence() {
	switch {
	case l.pause.flies && l.now >= l.pause.known(l):
		l.pause.lift(l)
	case l.phase == Drain && l.epoch.witness != none && l.now >= l.drained():
		l.proceed()
	case l.phase == Probe && l.noise.suspicion.probe.left == 0 && l.now >= l.noise.suspicion.probe.mayGo(l):
		l.noise.suspicion.conclude(l)
	}
	l.note()
}

// proceed leaves drain, for an attempt of this epoch was accepted.
func (l *Adaptive) proceed() {
	outage := l.epoch.failures >= outageFailures
	l.epoch.heal()
	if outage {
		l.enter(Start)
		return
	}
	l.enter(Cruise)
}

func (l *Adaptive) enter(p Phase) {
	l.phase, l.since, l.before = p, l.now, l.history.last
	l.replies = 0
	l.epoch.witness = none
	if p == Start {
		l.bounds = bounds{} // no measurement still holds
	}
	l.due = max(l.due, l.now-l.delay(l.now)) // the first attempt may go now; the second must not make up for the wait
}

// rate returns the rate at instant t, in attempts per second, if nothing happens until
// then.
func (l *Adaptive) rate(t float64) float64 {
	var r float64
	switch l.phase {
	case Start:
		// Each reply adds one call per reply time, as TCP's slow start does: that finds
		// fast servers fast.
		r = startRate*math.Exp2((t-l.since)/startDoubling) + float64(l.replies)/l.callSec.value
	case Drain, Probe:
		r = l.estimate / math.Pow(l.cfg.Multiplier, l.epoch.cuts)
	case Cruise:
		x := max(0, (t-l.since)/l.cruise()-1)
		r = l.estimate * (1 + x*x) // slowly at first: it is most likely still the same
	}
	if l.phase != Drain { // where the noise is measured, see noise.settle
		r /= 1 - l.noise.share()
	}
	r = max(r, 1/l.cfg.MaxDelay.Seconds())
	if l.limit > 0 {
		r = min(r, l.limit)
	}
	return min(r, 1/l.cfg.MinDelay.Seconds())
}

// drained returns when drain is over, if its first attempt is not refused.
func (l *Adaptive) drained() float64 { return max(l.epoch.witness+l.silence(), l.rests()) }

// rests returns until when drain lasts at least.
func (l *Adaptive) rests() float64 {
	if !l.noise.on || l.estimate == 0 {
		return l.since
	}
	return l.since + max(noiseRestCalls/l.estimate, l.cfg.SureSilence.Seconds())
}

// silence returns the seconds after which an attempt in drain that has met no refusal
// counts as accepted.
func (l *Adaptive) silence() float64 {
	if l.epoch.failures < 2 {
		return l.refusal.expected()
	}
	return max(l.refusal.expected(), l.cfg.SureSilence.Seconds())
}

// cruise returns how long to hold the cruise, and to climb from there to about twice the
// rate. At low rates it is shorter, by the root of the rate, since a refusal costs no
// more there and a rise is missed more: one from 5/s to 20/s is found within 2 s.
func (l *Adaptive) cruise() float64 {
	return l.pace * l.patience() * cruiseSec * math.Sqrt(min(1, l.estimate/referenceRate))
}

// holds reports whether the law goes no faster at instant t than was measured.
func (l *Adaptive) holds(t float64) bool { return l.phase == Cruise && t < l.since+l.cruise() }

// ceiling returns the rate above which the size of the pool is the limit.
func (l *Adaptive) ceiling() float64 {
	return ceilingFills * float64(l.cfg.PoolSize) / min(1, l.callSec.value)
}

// delay returns the seconds between two attempts at instant t; 0 when the law does not
// pace.
func (l *Adaptive) delay(t float64) float64 {
	r := l.rate(t)
	if r >= l.ceiling() && l.cfg.MinDelay == 0 {
		return 0
	}
	return 1 / r
}

func (l *Adaptive) note() {
	l.stats.CurrentDelay = seconds(l.delay(l.now))
	l.stats.PeakDelay = max(l.stats.PeakDelay, l.stats.CurrentDelay)
	l.stats.Concurrency = l.queue.limit()
	l.stats.Belief = l.belief()
	l.stats.PausedUntil, l.stats.PauseReason = time.Time{}, ""
	if l.pause.until > l.now {
		l.stats.PausedUntil, l.stats.PauseReason = l.instant(l.pause.until), l.pause.why
	}
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
