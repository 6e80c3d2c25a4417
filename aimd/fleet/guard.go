package fleet

const (
	// doubtedLeast is how many refusals a member must have met before it doubts the plan,
	// in the present window and the one before together. guardSec is the length of a
	// window.
	doubtedLeast = 10
	guardSec     = 1.0
	// A member that doubts makes so many times the calls that the server accepts from it,
	// and one in each trialSec to see whether it accepts more.
	doubtedShare = 1.1
	trialSec     = 4.0
)

// guard watches the outcomes of a member's calls. If most calls under a plan are refused
// for seconds, the plan is not for this server: it is forged, or the leader is mistaken.
// Until the server accepts most calls again, the member paces itself by the calls that
// are accepted. A common law that sees refusals slows down long before that.
type guard struct {
	began       float64 // the present window
	now, before verdicts
	doubts      bool
}

type verdicts struct{ accepted, refused int }

func (g *guard) verdict(sec float64, accepted bool) {
	g.roll(sec)
	if accepted {
		g.now.accepted++
	} else {
		g.now.refused++
	}
	yes, no := g.now.accepted+g.before.accepted, g.now.refused+g.before.refused
	switch {
	case no >= doubtedLeast && no > yes:
		g.doubts = true
	case yes > no:
		g.doubts = false
	}
}

func (g *guard) roll(sec float64) {
	switch age := sec - g.began; {
	case age >= 2*guardSec:
		g.now, g.before = verdicts{}, verdicts{}
		g.began = sec
	case age >= guardSec:
		g.now, g.before = verdicts{}, g.now
		g.began += guardSec
	}
}

// wait returns how long after a call the next one may go, in seconds.
func (g *guard) wait(sec float64) float64 {
	if !g.doubts {
		return 0
	}
	g.roll(sec)
	accepted := float64(g.now.accepted+g.before.accepted) / (guardSec + sec - g.began)
	return 1 / (doubtedShare*accepted + 1/trialSec)
}
