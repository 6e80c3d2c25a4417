package auditlog

import (
	"fmt"
	"time"
)

// Pace is what it was worth to make calls side by side. For example, 100 calls of 1.2 s in
// a pool of 16 that take 10 s together: CallsS is 120, ElapsedS is 10, Speedup is 12, and
// Utilisation is 120 / (10 × 16) = .75.
type Pace struct {
	// CallsS is the sum of the durations of all calls, in seconds. Made one after the
	// other, the calls would take that long.
	CallsS float64 `event:"calls_s" json:"calls_s"`
	// ElapsedS is the time that passed, in seconds.
	ElapsedS float64 `event:"elapsed_s" json:"elapsed_s"`
	// Speedup is CallsS divided by ElapsedS.
	Speedup float64 `event:"speedup" json:"speedup"`
	// Utilisation is the share of the pool's slots that was in use, from 0 to 1.
	Utilisation float64 `event:"utilisation" json:"utilisation"`
	// ThrottledS is the time in which a row was ready and a slot free, and the throttle
	// held the call back, in seconds.
	ThrottledS float64 `event:"throttled_s" json:"throttled_s"`
}

// NewPace returns the pace of calls that took so long in all while elapsed passed, with a
// pool of so many slots. A pace of no time is zero.
func NewPace(calls, elapsed, throttled time.Duration, slots int) Pace {
	p := Pace{CallsS: calls.Seconds(), ElapsedS: elapsed.Seconds(), ThrottledS: throttled.Seconds()}
	if elapsed > 0 && slots > 0 {
		p.Speedup = p.CallsS / p.ElapsedS
		p.Utilisation = p.Speedup / float64(slots)
	}
	return p
}

// Gain says all five numbers, as in "12.0: calls of 2m0s in 10s, 75% of 16 slots in use,
// throttled for 0s". Slots is the size of the pool, or 0 if several pools made the calls.
// The text is empty if less than a second passed or was spent in calls, since the numbers
// then say nothing.
func (p Pace) Gain(slots int) string {
	if p.ElapsedS < 1 || p.CallsS < 1 {
		return ""
	}
	of := "the"
	if slots > 0 {
		of = fmt.Sprint(slots)
	}
	return fmt.Sprintf("%.1f: calls of %s in %s, %.0f%% of %s slots in use, throttled for %s",
		p.Speedup, tenths(p.CallsS), tenths(p.ElapsedS), 100*p.Utilisation, of, tenths(p.ThrottledS))
}

// tenths returns a time in seconds as a duration, rounded to a tenth of a second.
func tenths(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond)
}
