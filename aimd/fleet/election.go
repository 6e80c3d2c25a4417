package fleet

const (
	// doubtSec is how long a leader may be silent before a member asks for its plan,
	// askSec how long until it asks again, and aloneSec the same while it is alone.
	doubtSec = 0.9
	askSec   = 0.25
	aloneSec = 0.5
	// claimSec is how long a leader may be silent before the first of the members leads.
	// Each next one waits by rankSec longer, so that one replaces the leader and not all
	// of them.
	claimSec = 1.25
	rankSec  = 0.04
	ranksMax = 15
	// answerSec is how long a member that has no leader waits for the answer of one after
	// it has heard itself. Up to spreadSec come on top, by [spread].
	answerSec = 0.35
	spreadSec = 0.3
)

// election decides, without a vote, when a member leads and until when. Whoever leads
// must be heard by the others. A member finds that out by hearing its own messages, which
// come back to it: it leads only after it has heard its own hello and no leader has
// answered that, and no longer than it goes on hearing itself.
type election struct {
	spread   float64 // from 0 to 1, so that not all members claim at once
	asked    float64 // when it last sent a hello; none means never
	answered float64 // when it first heard a hello of its own since it heard a plan; none means not yet
	echo     float64 // when it last heard a hello or plan of its own
	ticked   float64 // when Tick was last called
}

// slept reports whether the member has not run for so long that another may lead by now.
func (e *election) slept(sec float64) bool { return sec-e.ticked > claimSec }

// ask reports whether to send a hello now, to a leader that is silent.
func (e *election) ask(sec float64, alone bool) bool {
	patience := askSec
	if alone {
		patience = aloneSec
	}
	if e.asked != none && sec-e.asked < patience {
		return false
	}
	e.asked = sec
	return true
}

// mayClaim reports whether it is this member's turn to lead: it is connected, as it has
// heard its own hello, and a leader would have answered that.
func (e *election) mayClaim(sec float64, v *view, alone bool) bool {
	switch {
	case e.answered == none:
		return false
	case v.plan == nil || alone:
		return sec-e.answered >= answerSec+spreadSec*e.spread
	}
	return v.silence(sec) >= claimSec+rankSec*e.rank(v) && sec-e.answered >= hastySec
}

// rank returns how many of the last plan's members lead rather than this one when their
// leader has gone.
func (e *election) rank(v *view) float64 {
	rank := 0.0
	for _, p := range v.places {
		if p.ID == v.id {
			return min(rank, ranksMax+e.spread*ranksMax/2)
		}
		if p.ID != v.plan.Leader {
			rank++
		}
	}
	return ranksMax * (1 + e.spread)
}
