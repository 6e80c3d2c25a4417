package fleet

import (
	"math"
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// view is what a member knows of its leader: the last plan, and its own place in it. A
// place means nothing in the turns of another leader. So place is nil, or is the member's
// own in the latest places of the leader that has sent plan.
type view struct {
	id     string  // of the member
	plan   *plan   // the last one, or nil
	heard  float64 // when a plan was last heard
	placed float64 // when the member last had a place, or first heard a plan
	delays delays  // of the leader's plans
	places []place // the latest ones, of this leader or the one before
	ring   uint64  // version of places; 0 if they are of the leader before
	place  *place
	share  float64 // by the last place that it had; 0 if it never had any
}

// take replaces the plan. It returns the place that the member had in the turns of the
// same leader, or nil.
func (v *view) take(p *plan, sec float64) (old *place) {
	if v.plan == nil {
		v.placed = sec
	}
	if v.plan == nil || !v.follows(p) {
		v.delays, v.place, v.ring = delays{}, nil, 0
	}
	v.delays.add(sec - p.Sent)
	v.plan, v.heard = p, sec
	if p.Bye {
		v.heard = sec - claimSec
	}
	old = v.place
	if p.Places != nil && p.Ring != v.ring {
		v.ring, v.places, v.place = p.Ring, p.Places, nil
		for i := range p.Places {
			if own := p.Places[i]; own.ID == v.id {
				v.place, v.share = &own, float64(own.Share)
			}
		}
	}
	if v.place != nil {
		v.placed = sec
	}
	return old
}

// follows reports whether p is of the leader that the member follows.
func (v *view) follows(p *plan) bool { return p.Leader == v.plan.Leader && p.Term == v.plan.Term }

// outdated reports whether the places of the plan are not known: the plan that had them
// was lost.
func (v *view) outdated() bool { return v.plan != nil && v.plan.Ring != v.ring }

// silence returns for how long no leader has been heard. It is long if none ever was.
func (v *view) silence(sec float64) float64 {
	if v.plan == nil {
		return silentSec
	}
	return sec - v.heard
}

// age returns how long ago the plan was sent.
func (v *view) age(sec float64) float64 { return max(0, sec-v.delays.least()-v.plan.Sent) }

// due returns how many whole turns have come due over all members.
func (v *view) due(sec float64) float64 { return math.Floor(v.plan.at(v.age(sec)) + rounding) }

// position returns how many turns the member has had by its place, with the part of the
// next that has passed. It moves with each whole turn over all members: to the law, a
// call goes when its turn comes due.
func (v *view) position(sec float64) float64 {
	if v.place == nil {
		return math.Inf(-1)
	}
	return v.place.at(v.due(sec)) + rounding
}

// rounding is far less than a turn, and more than sums of turns are off by.
const rounding = 1e-6

// rate returns how many calls per second the plan gives the member, 0 without a place.
func (v *view) rate() float64 {
	if v.place == nil {
		return 0
	}
	return float64(v.place.Share) * v.plan.Rate
}

// portion returns the part of the account's limits that the member may use, from 0 to 1.
// One that has never had a share may use all of them.
func (v *view) portion() float64 {
	if v.share == 0 {
		return 1
	}
	return v.share
}

// belief returns what the leader believes about the server, as its last plan says. The
// member's clock began at begin.
func (v *view) belief(begin time.Time) aimd.Belief {
	b := aimd.Belief{Measured: true, Shared: true}
	switch {
	case v.plan == nil:
	case v.plan.Belief == nil:
		b.Limit = v.plan.Estimate
	default:
		of := v.plan.Belief
		b.Limit, b.Low, b.High, b.InFlight, b.Random = of.Limit, of.Low, of.High, of.InFlight, of.Random
		if of.MetAgo > 0 {
			b.Met = begin.Add(time.Duration((v.heard - of.MetAgo) * float64(time.Second)))
		}
	}
	return b
}

// delays finds the leader's clock: the least time between sending and hearing, of the
// last plans, is nearest to the difference of the two clocks.
type delays struct {
	last [16]float64
	n    int
}

func (d *delays) add(sec float64) {
	d.last[d.n%len(d.last)] = sec
	d.n++
}

func (d *delays) least() float64 { return slices.Min(d.last[:min(d.n, len(d.last))]) }
