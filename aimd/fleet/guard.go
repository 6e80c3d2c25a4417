package fleet

import "math"

const (
	// doubtedLeast is how many refusals a member must have met in a window before it
	// doubts the plan, guardSec the length of a window. It looks at the present one and
	// the one before.
	doubtedLeast = 10
	guardSec     = 1.0
	// A member that doubts makes so many times the calls that the server accepts from it,
	// and one in each trialSec to see whether it accepts more.
	doubtedShare = 1.1
	trialSec     = 4.0
	// untrue is by how many times the law's estimate must exceed what the server accepts,
	// while it refuses most calls, to be no estimate at all.
	untrue = 4.0
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

// refuted reports whether the server refused most calls between two looks at the fleet,
// and accepted far fewer than the law's estimate. The one of an earlier leader may have
// been forged, and the law would halve it a dozen times.
func refuted(estimate float64, before, now *use) bool {
	accepted, refused := float64(now.accepted-before.accepted), float64(now.refused-before.refused)
	const sec = sampleSec * (samples - 1)
	return refused >= doubtedLeast && refused > accepted && estimate > untrue*max(accepted/sec, 1)
}

// catchUp keeps a member from waiting for turns that are further away than a plan can
// tell: it has taken turns that never were.
func (t *turns) catchUp(position, perSec float64) {
	if most := position + max(2, perSec*silentSec); float64(t.taken) > most {
		t.taken = whole(math.Ceil(most))
	}
}
