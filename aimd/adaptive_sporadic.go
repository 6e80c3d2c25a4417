package aimd

import "math"

// The constants of sporadic refusals.
const (
	// Fewer attempts than this in a short time say nothing, so each refusal counts. It also
	// keeps many slow clients of one server fair: to each of them the others' climbs look
	// like sporadic refusals.
	sporadicLeast = 4
	// Where others are known it takes more: what a client takes from the others would
	// look sporadic to it, and the more it has the more.
	sporadicShared = 16
	// There are more refusals than usual if they exceed the usual number by so many
	// standard deviations.
	sporadicSigmas = 4.0
	// The most that is believed to be usual: a server that is too slow for the rate would
	// otherwise be taken for one that refuses more and more. In start, where the usual loss
	// can't be measured, it is taken to be this.
	usualMost = 0.05
	// The usual loss is an average over at least so many attempts, and at least a second
	// of them.
	usualCalls = 256.0
)

// sporadic reports whether the refusal of m is of the kind that servers make for no
// reason, one call in a hundred, which is none of the rate's business. It is unless there
// are more of them than usual. While climbing, one is more than usual where there are
// none otherwise; at the measured rate, which should suit the server, it takes two.
func (l *Adaptive) sporadic(m mark) bool {
	least, enough := 0.0, float64(sporadicLeast)
	if l.rivals() {
		enough = sporadicShared
	}
	switch {
	case m.epoch != l.epoch.number, l.phase == Probe, l.phase == Drain && m.at == l.epoch.witness:
		return false // it is judged otherwise
	case math.IsInf(l.pace, 1):
		return false // no climb would ever correct a rate that is a little too high
	case l.phase == Start && l.estimate == 0:
		least = max(fewCalls, enough) // the first start is faster than it can tell
	case shortSec*m.rate < enough:
		return false
	}
	refused, sent := 1.0, 1.0
	for a := range l.history.before(m.seq) {
		if a.at < l.since || m.at-a.at > shortSec && sent >= least {
			break
		}
		sent++
		if a.refused {
			refused++
		}
	}
	held := m.rate <= l.estimate
	more := refused >= l.noise.more(l.phase, sent, held)
	l.noise.reckon(l, refused, held, more)
	return !more
}

// more returns how many refusals of so many attempts are more than usual.
func (n *noise) more(p Phase, sent float64, held bool) float64 {
	loss, least := n.base, 1.0
	if p == Start {
		loss = usualMost
	}
	if p == Start || held {
		least = 2
	}
	usual := loss * sent
	return max(least, math.Round(usual+sporadicSigmas*math.Sqrt(usual)))
}

// reckon counts a sporadic refusal at the measured rate into the usual loss, and takes
// those before it out again if they turn out to be more than usual.
func (n *noise) reckon(l *Adaptive, refused float64, held, more bool) {
	if !more {
		n.spared++
	}
	switch {
	case !held:
	case more:
		n.base = max(0, n.base-(refused-1)*l.usualGain())
	default:
		n.base = min(usualMost, n.base+(1-n.base)*l.usualGain())
	}
}

// usualGain is the weight of an attempt in the usual loss.
func (l *Adaptive) usualGain() float64 { return 1 / max(usualCalls, l.estimate) }

// rivals reports whether others are known whose laws are their own, rather than members
// that this law serves.
func (l *Adaptive) rivals() bool { return l.shared && l.cfg.SureSilence == 0 }
