package recorder

import "time"

const (
	// gatherFor is how long events gather.
	gatherFor = 5 * time.Millisecond
	// gatherFew is how often within an interval events go at once. Beyond it they gather until it ends.
	gatherFew = 16
	// gatherMany is how many events don't wait for the end of the interval: more at a time cost hardly less.
	gatherMany = 256
)

// pace lets few events go at once, so that a lone row does not wait, and many gather. Each departure wakes up client
// and server, twice with the answer: at 8,000 events a second in groups of 32 an event took half the CPU of one that
// goes alone on an idle machine.
type pace struct {
	began      time.Time // of the interval
	departures int       // in it
	gathering  bool
	wake       *time.Timer // nil: never needed yet
	armed      bool        // wake will fire
}

// mayGo reports whether the n events that wait may go now. If not, wake is called when the interval ends.
func (p *pace) mayGo(now time.Time, n int, wake func()) bool {
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
	p.wait(gatherFor-passed, wake)
	return false
}

// wait has wake called after d, or earlier where it was to be called before.
func (p *pace) wait(d time.Duration, wake func()) {
	switch {
	case p.armed:
	case p.wake == nil:
		p.wake = time.AfterFunc(d, wake)
	default:
		p.wake.Reset(d)
	}
	p.armed = true
}

func (p *pace) stop() {
	if p.wake != nil {
		p.wake.Stop()
	}
}
