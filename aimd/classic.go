package aimd

import "time"

// Classic is the plain law: it spaces attempts by the delay of a [Throttle], and by the floor before any error has
// raised that delay. It knows no limit on attempts in flight and leaves a server's Retry-After to the caller.
//
// Its methods take instants that never go back, and are for one goroutine; Stats may be called from any.
type Classic struct {
	throttle *Throttle
	sent     time.Time // the last attempt; zero before the first
}

// NewClassic returns a law that lets the first attempt go at once, or the problems of cfg as [Config.Validate] reports
// them.
func NewClassic(cfg Config) (*Classic, error) {
	throttle, err := NewThrottle(cfg)
	if err != nil {
		return nil, err
	}
	return &Classic{throttle: throttle}, nil
}

// Next returns the instant from which one attempt may go; it may lie before now. It changes with every verdict, so
// call it again after each.
func (c *Classic) Next(now time.Time, _ int) time.Time {
	if c.sent.IsZero() {
		return now
	}
	return c.sent.Add(max(c.throttle.Delay(), c.throttle.cfg.MinDelay))
}

// Sent records that an attempt goes now, with inFlight in flight, this one included.
func (c *Classic) Sent(now time.Time, inFlight int) Ticket {
	c.sent = now
	return Ticket{Sent: now, InFlight: inFlight}
}

// Accepted records a reply that was no capacity error.
func (c *Classic) Accepted(time.Time, Ticket) { c.throttle.Success() }

// Rejected records a capacity error.
func (c *Classic) Rejected(time.Time, Ticket, Hint) { c.throttle.CapacityError() }

// Dropped records an attempt that ended without a verdict, which changes nothing.
func (c *Classic) Dropped(time.Time, Ticket) {}

// Restart resets the delay to the floor, because the server is back after an outage that was not about capacity. The
// floor counts from the last attempt before it.
func (c *Classic) Restart(time.Time) { c.throttle.Restart() }

// Stats returns the throttle's statistics.
func (c *Classic) Stats() Stats { return c.throttle.Stats() }
