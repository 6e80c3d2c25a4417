package aimd

import "math"

// The constants of random refusals.
const (
	// The first probe of a series must all be accepted, and is for one call more than a
	// limiter at the estimated rate has room for, rounded up.
	probeRoom = 1.5
	// The second is twice what a limiter at twice the estimated rate has room for, and
	// half of it must be accepted: no limiter does that, and at random it fails once in a
	// hundred times even if a fifth is refused.
	probeRoomSure = 2.0
	// A probe larger than this costs more than it is worth.
	probeMax = 32
	// Attempts between two probes at least. A probe that was mostly refused met a
	// limiter: the next comes after four times as many attempts as the last.
	probeGap       = 8
	probeGapGrowth = 4
	// The base loss is an average over about so many attempts, taken only where a limiter
	// would not refuse.
	baseCalls = 64.0
	// At less base loss than this the noise has gone, at more it is none. When it is
	// found the base is what the probe met, within bounds, as that is few attempts.
	baseGone, baseMost       = 0.02, 0.5
	baseFirst, baseFirstMost = 0.05, 0.2
	// The loss above the measured rate is an average over about so many attempts: it
	// bounds the base for minutes, and an average that varies more would make usual
	// refusals look like too many. Where a half is refused it varies by .02, so more than
	// the second is no noise.
	aboveCalls, aboveMost = 256.0, 0.55
	// A refusal counts at least once in this time, so that the base loss is measured
	// again.
	noiseCheckSec = 120.0
)

// noise finds out whether the server refuses at random at any rate: a gateway that sheds
// load by itself, or many limiters behind one address. A law that gives way to such
// refusals ends at the longest delay. Once the noise is known, the law only sees the
// refusals that exceed the usual loss: with a usual loss of 5 %, those beyond one in 20.
type noise struct {
	on      bool
	base    float64 // the usual loss: while on, the base loss
	above   float64 // while on, the loss at more than the measured rate
	checked float64 // when a refusal was last let through
	spared  int     // refusals kept from the law since the last measurement
	probe   probe
}

// suspect takes note of a refusal of m while cruising at no more than the rate that was
// measured. It calls for a probe, unless there was one not long ago.
func (n *noise) suspect(l *Adaptive, m mark) {
	if n.on || l.shared || m.seq < n.probe.notBefore {
		return
	}
	n.probe.wanted, n.probe.sure = true, false
	n.probe.empty, n.probe.rate = m.at, max(l.estimate, m.rate)
}

// startProbe begins the probe that is wanted, if there are slots for all of it.
func (n *noise) startProbe(l *Adaptive, inFlight int) {
	p := &n.probe
	if !p.wanted || l.pause.until > l.now {
		return
	}
	p.wanted = false
	p.sent = l.now
	p.size = p.required()
	if p.sure {
		p.size *= 2
	}
	if p.size > min(probeMax, l.cfg.PoolSize-inFlight) || l.slots.limit > 0 {
		return
	}
	p.left, p.refused = p.size, 0
	l.enter(Probe)
}

// conclude ends a probe whose attempts would all have been refused by now.
func (n *noise) conclude(l *Adaptive) {
	p := &n.probe
	accepted := p.size - p.refused
	switch {
	case accepted < p.required():
		p.notBefore = l.history.last + max(p.gap, probeGap)
		if 2*accepted < p.required() {
			p.gap = probeGapGrowth * max(p.gap, probeGap)
		}
		if accepted > 0 {
			l.proceed()
			return
		}
		l.failures++
		l.cuts++
		l.enter(Drain)
	case !p.sure:
		p.wanted, p.sure = true, true
		p.empty = p.sent
		l.enter(Drain)
	default:
		n.on, n.checked, n.above = true, l.now, baseMost
		n.base = min(baseFirstMost, max(baseFirst, float64(p.refused)/float64(p.size)))
		p.gap = 0
		l.estimate = max(l.estimate, p.rate)
		l.failures, l.cuts = 0, 0
		l.enter(Cruise)
	}
}

// explain reports whether the refusal of m is nothing but noise. In drain the refusal of
// its first attempt is not: what was refused there must not pass for accepted, or an outage
// would never be noticed.
func (n *noise) explain(l *Adaptive, m mark) bool {
	n.learn(l, m, 1)
	due := n.on && l.phase != Drain && l.now-n.checked >= noiseCheckSec
	if due || !l.sporadic(m) {
		n.checked = l.now
		return false
	}
	return true
}

// learn counts the outcome of an attempt at the measured rate into the usual loss. The
// loss above the measured rate is an upper bound for it, for two reasons. A law that
// climbs for minutes without a refusal would otherwise take a new limit for old noise.
// And a law that meets a limit far above the measured rate would never measure again.
func (n *noise) learn(l *Adaptive, m mark, lost float64) {
	switch {
	case l.phase == Drain:
	case m.rate > l.estimate && n.on:
		n.above += (lost - n.above) / aboveCalls
		if n.above < baseGone || n.above > aboveMost {
			n.base = n.above
			n.end()
		}
	case m.rate > l.estimate:
	case n.on:
		if n.above < n.base { // a server that refuses at the measured rate refuses above it, too
			n.above += (lost - n.above) / baseCalls
		}
		n.base += (lost - n.base) / baseCalls
		if n.base < baseGone || n.base > baseMost {
			n.end()
		}
	case lost == 0: // sporadic counts refusals
		n.base -= n.base * l.usualGain()
	}
}

// end ends the noise; a usual loss above usualMost is believed of noise alone.
func (n *noise) end() { n.on, n.base = false, min(n.base, usualMost) }

// probe is a group of attempts sent at once just after a refusal. An empty bucket has no
// room for it.
type probe struct {
	wanted    bool
	sure      bool    // the second of a series
	size      int     // attempts in it
	left      int     // of them yet to be sent
	refused   int     // of them, so far
	rate      float64 // that a limiter has at most, by estimate
	empty     float64 // when the bucket was empty
	sent      float64 // when the last attempt went
	notBefore int     // the first seq that may start another series
	gap       int     // attempts between two series; 0 means the least
}

// required returns how many must be accepted to rule out a limiter.
func (p *probe) required() int {
	gained := p.rate * (p.sent - p.empty)
	if p.sure {
		return int(math.Ceil(probeRoomSure * (1 + gained)))
	}
	return int(math.Ceil(probeRoom + gained))
}

// mayGo returns when the probe's next attempt may go, or when it is over.
func (p *probe) mayGo(l *Adaptive) float64 {
	if p.left > 0 {
		return l.now
	}
	return p.sent + l.refusal.surely()
}

// sends reports whether the attempt that goes now is part of the probe.
func (p *probe) sends(l *Adaptive) bool {
	if l.phase != Probe || p.left == 0 {
		return false
	}
	p.left--
	p.sent, l.due = l.now, l.now
	return true
}
