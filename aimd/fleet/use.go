package fleet

import "time"

const (
	// Below this share of used turns the law does not climb: what nobody sends cannot be
	// refused.
	usedLeast = 0.8
	// untrue is by how many times the law's estimate must exceed what the server accepts,
	// while it refuses most calls, to be no estimate at all.
	untrue = 4.0
	// sampleSec is the time between two samples of use, and windowSec from the first to
	// the last one that are kept.
	sampleSec = 0.25
	samples   = 5
	windowSec = sampleSec * (samples - 1)
)

// useLog samples how many turns have come due, and what the members report of their calls
// in them. It concludes nothing before its window is full.
type useLog struct {
	sum    use          // since the term began
	window [samples]use // the last sample first
	taken  int          // samples so far
	last   time.Time    // when the last sample was due
	perSec float64      // calls sent per second over the window; infinite until it is full
}

type use struct {
	turns                   int64
	sent, accepted, refused uint64
}

// sample takes the next sample, if it is time for one, and reports whether it was.
func (u *useLog) sample(now time.Time, turns int64) bool {
	if now.Sub(u.last).Seconds() < sampleSec {
		return false
	}
	u.last = u.last.Add(time.Duration(sampleSec * float64(time.Second)))
	u.taken++
	u.sum.turns = turns
	copy(u.window[1:], u.window[:])
	u.window[0] = u.sum
	if u.taken > samples {
		u.perSec = float64(u.sum.sent-u.window[samples-1].sent) / windowSec
	}
	return true
}

// idle reports whether turns go unused. Reports are a moment old, and so must be the
// turns.
func (u *useLog) idle() bool {
	last, before, first := &u.window[0], &u.window[1], &u.window[samples-1]
	return u.taken > samples && float64(last.sent-first.sent) < usedLeast*float64(before.turns-first.turns)-1
}

// refutes reports whether the server refused most calls of the window, and accepted far
// fewer than an estimate. The estimate of an earlier leader may have been forged, and the
// law would halve it a dozen times.
func (u *useLog) refutes(estimate float64) bool {
	last, first := &u.window[0], &u.window[samples-1]
	accepted, refused := float64(last.accepted-first.accepted), float64(last.refused-first.refused)
	return u.taken > samples && refused >= doubtedLeast && refused > accepted && estimate > untrue*max(accepted/windowSec, 1)
}
