package aimd

// The constants of what the server tells.
const (
	// A told wait above this is long. Limiters that refill all the time tell a second or so at each refusal, since
	// the header counts in whole ones: to obey would idle the server for most of it.
	longSec = 2.0
	// A long one is believed, and all attempts wait, at the second refusal without an accepted attempt in between: the
	// server means it. A short one only at the third.
	longFailures  = 2
	shortFailures = 3
	// Pauses are longer by up to this part, so that clients that were told the same instant do not come back as one.
	pauseJitter = 0.02
	// No pause is longer than a year, lest a nonsensical one overflow.
	pauseMostSec = 366 * 24 * 3600
)

// pause is a time in which no attempt may go, because the server said so.
type pause struct {
	until float64
	why   PauseReason
}

// heed draws the conclusions from a hint.
func (p *pause) heed(l *Adaptive, h Hint) {
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
