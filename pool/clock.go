package pool

import "time"

// clock is the running time of a pool, which stands still while the pool is paused.
// Deadlines are kept in it, so a pause costs no job its time. For example, a job that has
// 30 s from 12:00:00 and meets a pause from 12:00:20 to 12:10:20 has until 12:10:30.
//
// The zero value runs, and shows the time of day until the first pause. From then on it
// is slow by the pauses that have ended.
type clock struct {
	stopped time.Time     // when the present pause began; zero while the clock runs
	slow    time.Duration // the length of all pauses that have ended
}

// stop makes the clock stand still from now on.
func (c *clock) stop(now time.Time) { c.stopped = now }

// start makes the clock run again.
func (c *clock) start(now time.Time) {
	c.slow += now.Sub(c.stopped)
	c.stopped = time.Time{}
}

// stands reports whether the clock stands still.
func (c *clock) stands() bool { return !c.stopped.IsZero() }

// running returns what the clock shows.
func (c *clock) running(now time.Time) time.Time {
	if c.stands() {
		now = c.stopped
	}
	return now.Add(-c.slow)
}

// due returns when a deadline passes. It is zero if there is no deadline, and while the
// clock stands still.
func (c *clock) due(deadline time.Time) time.Time {
	if deadline.IsZero() || c.stands() {
		return time.Time{}
	}
	return deadline.Add(c.slow)
}

// past reports whether a deadline has passed. While the clock stands still none does.
func (c *clock) past(now, deadline time.Time) bool {
	due := c.due(deadline)
	return !due.IsZero() && !now.Before(due)
}
