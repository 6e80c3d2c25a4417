package health

import (
	"math"
	"time"
)

// A server in a brown-out still lets single attempts in, so the time since its last
// success never gets long. It shows in how many attempts the server lets in while jobs
// wait, compared with the usual rate.
const (
	// slowShare is the share of its usual rate below which a server is slow. A limit that
	// moves between 20 and 5 a second, and a few more clients of the same server, are
	// normal and leave more.
	slowShare = 0.25
	// slowParts and slowAttempts say how often the rate is measured: in parts of
	// Config.SlowAfter, so that slowness is noticed before it is over, and in as long as
	// slowAttempts attempts usually take, so that a few that come late make no
	// difference.
	slowParts    = 4
	slowAttempts = 8
	// usualLeast is how long a rate is measured until it is the usual one: a bucket that
	// holds the attempts of a minute at first lets in many times its rate.
	usualLeast = 20 * time.Second
	// usualFor is the time over which the usual rate is an average. While the server is
	// slow it is not measured, but halves in that time. For example, a tenth of it is the
	// new normal after 80 minutes.
	usualFor = time.Hour
)

// capacity is how much a server lets in.
type capacity struct {
	starved time.Time // the first refusal since the last success; zero if there was none
	slow    time.Time // since when the server is slow; zero if it is not

	waits bool      // a job waits for the server's law or for a slot, since the last turn
	began time.Time // when the rate was first measured
	now   window
	usual float64       // attempts per second; 0 while unknown
	known time.Duration // how long that was measured, at most usualFor
}

// window is a time in which attempts are counted.
type window struct {
	began          time.Time
	lasted, waited time.Duration
	let            int // attempts sent, less those that were refused
}

func (w *window) perSec() float64 { return max(0, float64(w.let)) / w.lasted.Seconds() }

// busy reports whether jobs waited most of the time, so that the rate is what the server
// allowed rather than what was needed.
func (w *window) busy() bool { return w.waited > w.lasted/2 }

// over reports whether the window is that long, and long enough for some attempts at the
// usual rate.
func (w *window) over(least time.Duration, usual float64) bool {
	return w.lasted > 0 && w.lasted >= least && max(usual*w.lasted.Seconds(), float64(w.let)) >= slowAttempts
}

// count adds n to the attempts that were let in.
func (c *capacity) count(n int) { c.now.let += n }

// ended records how a call ended. A refusal that the law is spared does not make jobs go
// past the server.
func (c *capacity) ended(now time.Time, sign Sign, spared bool) {
	switch sign { //nolint:exhaustive // the others do not show whether there is capacity
	case Success:
		c.starved = time.Time{}
	case Refused:
		c.count(-1) // after all
		if !spared && c.starved.IsZero() {
			c.starved = now
		}
	}
}

// Waits records that a job waits for the server's law or for a slot.
func (s *Server) Waits() { s.capacity.waits = true }

// LackingSince returns since when the server is without capacity, in a brown-out, or out.
// It is zero if it is well.
func (s *Server) LackingSince() time.Time {
	since := sooner(s.capacity.starved, s.capacity.slow)
	if s.Out() {
		since = sooner(since, s.Outage.Since)
	}
	return since
}

// Turn adds the time since the last turn of the pool to the measurement of the server's
// rate.
func (s *Server) Turn(last, now time.Time) {
	if last.IsZero() {
		return
	}
	c := &s.capacity
	w := &c.now
	if c.began.IsZero() {
		c.began = last
	}
	if w.lasted == 0 {
		w.began = last
	}
	w.lasted += now.Sub(last)
	if c.waits {
		w.waited += now.Sub(last)
	}
	c.waits = false
	if w.over(s.m.cfg.SlowAfter/slowParts, c.usual) {
		c.judge(now)
		c.learn()
		c.now = window{}
	}
}

// judge decides whether the server is slow.
func (c *capacity) judge(now time.Time) {
	known := now.Sub(c.began) >= usualLeast
	if known && c.now.busy() && c.now.perSec() < slowShare*c.usual {
		c.slow = sooner(c.slow, c.now.began)
	} else {
		c.slow = time.Time{}
	}
}

// learn updates the usual rate. Where nothing waited it is at least what was let in.
func (c *capacity) learn() {
	rate := c.now.perSec()
	switch {
	case !c.slow.IsZero():
		c.usual *= math.Exp2(-c.now.lasted.Seconds() / usualFor.Seconds())
	case c.now.busy() || rate > c.usual:
		c.known = min(c.known+c.now.lasted, usualFor)
		c.usual += (rate - c.usual) * min(1, c.now.lasted.Seconds()/c.known.Seconds())
	}
}
