package aimd

import (
	"fmt"
	"strings"
	"time"
)

// Belief is what a law believes about the server, for people: what it knows, and nothing
// that it only guesses. [Belief.Text] has it in words.
//
// For example, the server admitted 19 attempts a second for a while, and refused one when
// the law tried 25. In between were 20 a second. Then Limit is 20, Low 19 and High 25.
type Belief struct {
	// Measured is set by a law that measures the server. Without it the law believes
	// nothing, and everything else is zero.
	Measured bool
	// Limit is how many attempts a second the server admits, apart from those that it
	// refuses at random, as last measured; 0 means that no limit has been seen, or none
	// since the last outage.
	Limit float64
	// Low and High bound Limit: the server surely admitted Low when the limit was last
	// met, and refused an attempt at the rate High. Both are 0 where the law has no
	// bounds, since it took over the limit from another law.
	Low, High float64
	// Met is when the server last refused an attempt for its rate; zero if the law does
	// not know.
	Met time.Time
	// InFlight is the most attempts in flight that the server accepts; 0 means that no
	// such limit has been seen.
	InFlight int
	// Random is the share of attempts, from 0 to 1, that the server refuses whatever the
	// rate is; 0 means that the law knows of none.
	Random float64
	// Shared is set where Limit is what several processes may use together.
	Shared bool
}

// metAgo is the age from which on words mention when the limit was met: a law that climbs
// again meets it more often.
const metAgo = time.Minute

// Text returns the belief in words, as in "limit about 20/s (19-25), 3% of calls refused
// at random", with the time since the limit was met as of now. It is empty for a law that
// measures nothing.
func (b Belief) Text(now time.Time) string {
	if !b.Measured {
		return ""
	}
	var facts []string
	switch {
	case b.Limit > 0:
		facts = append(facts, b.limitText(now))
	case b.InFlight == 0:
		facts = append(facts, "no limit seen yet")
	}
	if b.InFlight > 0 {
		facts = append(facts, fmt.Sprintf("no more than %d calls at once are accepted", b.InFlight))
	}
	if b.Random > 0 {
		facts = append(facts, percentText(b.Random)+" of calls refused at random")
	}
	return strings.Join(facts, ", ")
}

// limitText is the limit with its bounds, and when it was met if that was long ago.
func (b Belief) limitText(now time.Time) string {
	text := "limit about " + rateText(b.Limit) + "/s"
	if low, high := rateText(b.Low), rateText(b.High); b.High > 0 && low != high {
		text += " (" + low + "-" + high + ")"
	}
	if b.Shared {
		text += " for all together"
	}
	if ago := now.Sub(b.Met); !b.Met.IsZero() && ago >= metAgo {
		text += fmt.Sprintf(" when last met, %s ago", strings.TrimSuffix(ago.Truncate(time.Minute).String(), "0s"))
	}
	return text
}

// rateText writes a rate as in 123, 12, 1.2 and 0.12.
func rateText(perSec float64) string {
	switch {
	case perSec >= 9.95:
		return fmt.Sprintf("%.0f", perSec)
	case perSec >= 0.995:
		return fmt.Sprintf("%.1f", perSec)
	}
	return fmt.Sprintf("%.2f", perSec)
}

// percentText writes a share of 1 as a percentage; one below a percent has a decimal.
func percentText(share float64) string {
	if share < 0.00995 {
		return fmt.Sprintf("%.1f%%", 100*share)
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

// bounds are what the law knows about how far its estimate may be off.
type bounds struct {
	limited   bool    // the estimate is of a limit that was met, or taken over, since the law last started
	low, high float64 // see [Belief]
	met       float64 // when it was met; none: by another law
}

// belief returns what the law believes now.
func (l *Adaptive) belief() Belief {
	b := Belief{Measured: true, Random: l.noise.share(), InFlight: l.slots.limit}
	if l.bounds.limited {
		b.Limit, b.Low, b.High = l.estimate, l.bounds.low, l.bounds.high
		if l.bounds.met != none {
			b.Met = l.instant(l.bounds.met)
		}
	}
	if !l.noise.on && l.spare.ended >= usualCalls && l.spare.share >= spareShown {
		b.Random = l.spare.share
	}
	return b
}

// spareShown is the least share of spared refusals that is worth a word.
const spareShown = 0.0005

// spare is the share of attempts whose refusals the law takes for sporadic: it spares them
// without having measured a share, see sporadic. It is an average over about usualCalls
// attempts that were accepted or spared while no noise was known, and is for people alone.
type spare struct {
	share float64
	ended float64 // attempts
}

// count counts an attempt that has ended: 1 for a refusal that was spared, 0 for one that
// was accepted.
func (s *spare) count(l *Adaptive, spared float64) {
	if l.noise.on {
		*s = spare{}
		return
	}
	s.ended++
	s.share += (spared - s.share) / min(s.ended, usualCalls)
}
