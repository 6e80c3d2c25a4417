package pool

import (
	"math"
	"time"
)

// A server in a brown-out still lets single attempts in, so that the time since its last success never gets long. What
// shows it is how many attempts it lets in while jobs wait, against what is usual there.
const (
	// A server is slow with less than this share of what is usual. A limit that moves between 20 and 5 a second, and a
	// few more clients of the same server, are normal operation and leave more.
	slowShare = 0.25
	// The rate is measured in parts of Config.FallbackAfter, so that slowness is noticed before it is over, and in as
	// long as so many attempts usually take, so that a few that come late make no difference.
	slowParts    = 4
	slowAttempts = 8
	// What is usual is measured for so long at a time: a bucket that holds the attempts of a minute at first lets in
	// four times its rate.
	usualPart = 20 * time.Second
	// What is usual is an average over so long. While the server is slow it is not measured, but halves in that time: a
	// tenth of it is the new normal after 80 minutes.
	usualFor = time.Hour
)

// pace measures how many attempts a server lets in.
type pace struct {
	waits bool // a job waits for the server's law or for a slot, since the last turn

	now, long window
	usual     float64       // attempts per second; 0: unknown
	known     time.Duration // how long that was measured, at most usualFor
	slow      time.Time     // since when the server is slow; zero: it is not
}

// window is a time in which attempts are counted.
type window struct {
	began          time.Time
	lasted, waited time.Duration
	let            int // sent, less those that met a capacity error
}

func (w *window) perSec() float64 { return max(0, float64(w.let)) / w.lasted.Seconds() }

// busy reports whether jobs waited most of the time, so that the rate is what the server allowed and not what was needed.
func (w *window) busy() bool { return w.waited > w.lasted/2 }

// over reports whether the window is that long, and long enough for some attempts at what is usual.
func (w *window) over(least time.Duration, usual float64) bool {
	return w.lasted > 0 && w.lasted >= least && max(usual*w.lasted.Seconds(), float64(w.let)) >= slowAttempts
}

// count adds n to the attempts that were let in.
func (p *pace) count(n int) {
	p.now.let += n
	p.long.let += n
}

// turn adds the time since the last turn, if there was one. After is Config.FallbackAfter.
func (p *pace) turn(last, now time.Time, after time.Duration) {
	if last.IsZero() {
		return
	}
	for _, w := range []*window{&p.now, &p.long} {
		if w.lasted == 0 {
			w.began = last
		}
		w.lasted += now.Sub(last)
		if p.waits {
			w.waited += now.Sub(last)
		}
	}
	p.waits = false
	if p.now.over(after/slowParts, p.usual) {
		p.judge()
		p.now = window{}
	}
	if p.long.over(usualPart, p.usual) {
		p.learn()
		p.long = window{}
	}
}

// judge decides whether the server is slow.
func (p *pace) judge() {
	if p.now.busy() && p.now.perSec() < slowShare*p.usual {
		p.slow = sooner(p.slow, p.now.began)
	} else {
		p.slow = time.Time{}
	}
}

// learn updates what is usual. Where nothing waited it is at least what was let in.
func (p *pace) learn() {
	rate := p.long.perSec()
	switch {
	case !p.slow.IsZero():
		p.usual *= math.Exp2(-p.long.lasted.Seconds() / usualFor.Seconds())
	case p.long.busy() || rate > p.usual:
		p.known = min(p.known+p.long.lasted, usualFor)
		p.usual += (rate - p.usual) * min(1, p.long.lasted.Seconds()/p.known.Seconds())
	}
}
