package recorder

import "time"

const (
	// gatherFor is how long events gather.
	gatherFor = 5 * time.Millisecond
	// gatherFew is how often within an interval events go at once. Beyond it they gather
	// until the interval ends.
	gatherFew = 16
	// gatherMany is how many events don't wait for the end of the interval: more at a
	// time cost hardly less.
	gatherMany = 256
)

// pace lets few events go at once, so that a lone row does not wait, and makes many
// gather. Each departure wakes up client and server, twice with the answer: at 8,000
// events a second in groups of 32 an event took half the CPU of one that goes alone on an
// idle machine.
//
// For example: 16 rows come within an interval of 5 ms, and each one's events go at once.
// The events of the 17th wait for the end of the interval, and go with all that have come
// by then. Events go on gathering for as long as every interval brings 16 or more.
type pace struct {
	began      time.Time // when the interval began
	departures int       // in the interval
	gathering  bool

	wake  func()      // must be set; runs in a goroutine of its own
	timer *time.Timer // calls wake; nil until it is needed for the first time
	armed bool        // the timer will call wake
}

// mayGo reports whether the n events that wait may go now. If not, wake is called when
// the interval ends.
func (p *pace) mayGo(now time.Time, n int) bool {
	passed := now.Sub(p.began)
	if passed >= gatherFor {
		p.gathering = p.gathering && n >= gatherFew
		p.began, p.departures = now, 1
		return true
	}
	if p.departures < gatherFew && !p.gathering || n >= gatherMany {
		p.departures++
		return true
	}
	p.gathering = true
	p.wakeAfter(gatherFor - passed)
	return false
}

// wakeAfter has wake called after d, or earlier if that was arranged before.
func (p *pace) wakeAfter(d time.Duration) {
	switch {
	case p.armed:
	case p.timer == nil:
		p.timer = time.AfterFunc(d, p.wake)
	default:
		p.timer.Reset(d)
	}
	p.armed = true
}

// woken must be called by wake.
func (p *pace) woken() { p.armed = false }

func (p *pace) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
