package aimd

import "time"

// Classic is the plain law: it spaces attempts by a delay that capacity errors multiply
// and successes shorten by a step. The delay starts at 0 and, once it has risen, stays
// between Config.MinDelay and Config.MaxDelay; before any error attempts are spaced by
// the floor. Classic knows no limit on attempts in flight and leaves a server's
// Retry-After to the caller.
//
// Its methods take instants that never go back, and are for one goroutine.
type Classic struct {
	cfg   Config
	sent  time.Time // the last attempt; zero before the first
	stats Stats     // CurrentDelay is the state, the rest are counters
}

// NewClassic returns a law that lets the first attempt go at once, or all problems of cfg
// joined into one error, each naming its field.
func NewClassic(cfg Config) (*Classic, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Classic{cfg: cfg}, nil
}

// Next returns the earliest instant for one attempt; it may lie before now. It changes
// with every verdict, so call it again after each.
func (c *Classic) Next(now time.Time, _ int) time.Time {
	if c.sent.IsZero() {
		return now
	}
	return c.sent.Add(max(c.stats.CurrentDelay, c.cfg.MinDelay))
}

// Sent records that an attempt goes now, with inFlight in flight, this one included.
func (c *Classic) Sent(now time.Time, inFlight int) Ticket {
	c.sent = now
	return Ticket{Sent: now, InFlight: inFlight}
}

// Accepted records a reply that was no capacity error. The delay falls by the recovery
// step, down to the floor.
func (c *Classic) Accepted(time.Time, Ticket) {
	c.stats.Successes++
	c.set(max(c.stats.CurrentDelay-c.cfg.RecoveryStep, c.cfg.MinDelay))
}

// Rejected records a capacity error. A delay of 0 becomes the recovery step, at least the
// floor; any other is multiplied. It never passes the ceiling.
func (c *Classic) Rejected(time.Time, Ticket, Hint) {
	c.stats.CapacityRetries++
	longer := float64(max(c.cfg.RecoveryStep, c.cfg.MinDelay))
	if c.stats.CurrentDelay > 0 {
		longer = float64(c.stats.CurrentDelay) * c.cfg.Multiplier
	}
	// Compared as floats, as a product beyond the range of a Duration must not wrap.
	if longer >= float64(c.cfg.MaxDelay) {
		c.set(c.cfg.MaxDelay)
		return
	}
	c.set(time.Duration(longer))
}

// Dropped records an attempt that ended without a verdict, which changes nothing.
func (c *Classic) Dropped(time.Time, Ticket) {}

// Restart resets the delay to 0, because the server is back after an outage that was not
// about capacity. The floor counts from the last attempt before it; the counters and the
// peak stay.
func (c *Classic) Restart(time.Time) { c.set(0) }

// Stats returns the counters and the delay as of now.
func (c *Classic) Stats() Stats { return c.stats }

func (c *Classic) set(delay time.Duration) {
	c.stats.CurrentDelay = delay
	c.stats.PeakDelay = max(c.stats.PeakDelay, delay)
}
