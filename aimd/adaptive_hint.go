package aimd

// The constants of the server's hints.
const (
	// Pauses are longer by up to this share, so that clients that got the same hint do
	// not all return at once.
	pauseJitter = 0.02
	// The first canary goes this long after a pause began. The multiplier lengthens the
	// wait for each next one: with a multiplier of 2 they go after .95, 2.85, 6.65 s and so
	// on, six in two minutes, and a pause that outlasts the outage ends after about twice
	// the outage's time at most.
	canarySec = 0.95
	// No pause is longer than a year, so that a nonsensical one cannot overflow.
	pauseMostSec = 366 * 24 * 3600
)

// pause is a time without regular attempts, because the server asked for it. A
// Retry-After is often far longer than the outage. So single attempts, called canaries,
// are sent meanwhile, and the first that is accepted ends the pause. A pause until the
// server resets its limit has none: nothing would be accepted before.
type pause struct {
	until float64
	why   PauseReason

	wait  float64 // seconds from the last canary, or the beginning, to the next canary
	tried float64 // when that was
	flies bool    // the canary is in flight
}

// opens returns when the next attempt may go, or when the law will know more.
func (p *pause) opens(l *Adaptive) float64 {
	switch {
	case p.until <= l.now:
		return 0
	case p.flies:
		return min(p.until, p.known(l))
	case p.why == PauseRetryAfter:
		return min(p.until, p.tried+p.wait)
	}
	return p.until
}

// known returns when a canary that was to be refused has been.
func (p *pause) known(l *Adaptive) float64 { return p.tried + l.surely() }

// sends reports whether the attempt that goes now is a canary.
func (p *pause) sends(l *Adaptive) bool {
	if p.until <= l.now {
		return false
	}
	p.tried, p.flies = l.now, true
	p.wait *= l.cfg.Multiplier
	return true
}

// lift ends a pause whose canary was accepted.
func (p *pause) lift(l *Adaptive) {
	*p = pause{}
	if l.phase == Drain {
		l.proceed()
	}
}

// applyHint begins or extends a pause that a hint asks for. A Retry-After is obeyed in an
// outage only: limiters that refill continuously ask for a second or so at each refusal, as
// the header counts whole seconds, and waiting that long would leave the server idle for
// most of it.
func (p *pause) applyHint(l *Adaptive, h Hint) {
	if h.Remaining0 && h.Reset > 0 {
		p.extend(l, h.Reset.Seconds(), PauseLimitReset)
	}
	if h.RetryAfter > 0 && l.epoch.failures >= outageFailures {
		p.extend(l, h.RetryAfter.Seconds(), PauseRetryAfter)
	}
}

func (p *pause) extend(l *Adaptive, sec float64, why PauseReason) {
	if l.cfg.Rand != nil {
		sec *= 1 + pauseJitter*l.cfg.Rand()
	}
	until := l.now + min(sec, pauseMostSec)
	if until <= p.until {
		return
	}
	if p.until <= l.now {
		p.tried, p.wait = l.now, canarySec
	}
	p.until, p.why = until, why
}
