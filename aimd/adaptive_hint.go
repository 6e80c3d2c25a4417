package aimd

// The constants of the server's hints.
const (
	// A Retry-After above this is long. Limiters that refill continuously ask for a second or so at each refusal, as
	// the header counts whole seconds: waiting that long would leave the server idle for most of it.
	longSec = 2.0
	// A long one is obeyed, and all attempts wait, from the second refusal without an accepted attempt in between. A
	// short one from the third.
	longFailures  = 2
	shortFailures = 3
	// Pauses are longer by up to this share, so that clients that got the same hint do not all return at once.
	pauseJitter = 0.02
	// No pause is longer than a year, so that a nonsensical one cannot overflow.
	pauseMostSec = 366 * 24 * 3600
)

// pause is a time in which no attempt may go, because the server asked for it.
type pause struct {
	until float64
	why   PauseReason
}

// applyHint begins or extends a pause that a hint asks for.
func (p *pause) applyHint(l *Adaptive, h Hint) {
	if h.Remaining0 && h.Reset > 0 {
		p.extend(l, h.Reset.Seconds(), PauseLimitReset)
	}
	wait := h.RetryAfter.Seconds()
	if wait > longSec && l.failures >= longFailures || wait > 0 && l.failures >= shortFailures {
		p.extend(l, wait, PauseRetryAfter)
	}
}

func (p *pause) extend(l *Adaptive, sec float64, why PauseReason) {
	if l.cfg.Rand != nil {
		sec *= 1 + pauseJitter*l.cfg.Rand()
	}
	if until := l.now + min(sec, pauseMostSec); until > p.until {
		p.until, p.why = until, why
	}
}
