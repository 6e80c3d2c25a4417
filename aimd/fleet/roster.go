package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

const (
	// moved is the relative change of a share above which all members learn of it.
	moved = 0.25
	// slotSec is how long a member waits for a slot, where there are fewer than members,
	// before another makes room.
	slotSec = 2.0
)

// roster has the members that the leader knows of, itself included, and their places,
// sorted by ID. All places change together, which ring counts. Until the next change a
// member that is new has no place, and one that has left keeps its own.
type roster struct {
	members map[string]*peer
	places  []place
	ring    uint64
	before  Limits // in the plan before this term; dropped silentSec later, as all members have reported by then or are gone
}

// peer is what the leader knows of a member, itself included.
type peer struct {
	report
	heard time.Time
	known bool      // by a report, not from the plan of an earlier leader alone
	slots int       // calls in flight that it may have
	held  int       // that it may still have, until it reports that it knows of fewer
	since time.Time // when slots last became 0, or more than 0
}

// newRoster returns the roster of a leader that follows on the one that a member has
// followed. The leader before is not in it.
func newRoster(now time.Time, v *view) roster {
	r := roster{members: make(map[string]*peer), places: slices.Clone(v.places)}
	if v.plan != nil {
		r.before = v.plan.Limits
	}
	for _, p := range r.places {
		if p.ID != v.plan.Leader || p.ID == v.id {
			r.members[p.ID] = &peer{report: report{ID: p.ID, Weight: 1, Hungry: true}, heard: now, slots: p.Slots, held: p.Slots}
		}
	}
	return r
}

// expire drops members that are silent or have left, but not the leader of that ID. It
// reports whether there were any, and returns the share of those that fell silent.
func (r *roster) expire(now time.Time, leader string) (gone bool, silenced float64) {
	for id, m := range r.members {
		if m.Bye || id != leader && now.Sub(m.heard) > silent {
			if p, _ := r.find(id); !m.Bye {
				silenced += float64(p.Share)
			}
			delete(r.members, id)
			gone = true
		}
	}
	return gone, silenced
}

// claims returns what each member wants, sorted by ID.
func (r *roster) claims() (ids []string, claims []claim) {
	ids = slices.Sorted(maps.Keys(r.members))
	claims = make([]claim, len(ids))
	for i, id := range ids {
		m := r.members[id]
		claims[i] = claim{m.Weight, m.Want}
		if m.Hungry {
			claims[i].want = math.Inf(1)
		}
	}
	return ids, claims
}

// differ reports whether shares differ so much from those of the places that all members
// must learn of it.
func (r *roster) differ(ids []string, shares []float64) bool {
	if len(ids) != len(r.places) {
		return true
	}
	for i, id := range ids {
		if old, _ := r.find(id); old.Share == 0 || math.Abs(shares[i]/float64(old.Share)-1) > moved {
			return true
		}
	}
	return false
}

// place gives all members new places, when so many turns have come due. Each keeps how
// far it is on the way to its next turn, so that changes of places, however many, take no
// turn from anybody.
func (r *roster) place(turns float64, ids []string, shares []float64, slots []int) {
	due := make([]float64, len(ids))
	for i, id := range ids {
		phase := math.Mod(float64(i)*golden, 1) // a new member starts anywhere, but not where others are
		if p, ok := r.find(id); ok {
			at := p.at(turns)
			phase = at - math.Floor(at)
		}
		due[i] = (1 - phase) / shares[i]
	}
	r.places = r.places[:0]
	for i, next := range space(shares, due) {
		share := float64(float32(shares[i]))
		at := share * (turns + next)
		p := place{ID: ids[i], Share: float32(shares[i]), Offset: float32(math.Ceil(at) - at)}
		if slots != nil {
			m := r.members[ids[i]]
			p.Slots, m.slots, m.held = slots[i], slots[i], max(m.held, slots[i])
		}
		r.places = append(r.places, p)
	}
	r.ring++
}

// allot divides the account's limit on calls in flight, if there is one. It reports
// whether the members must learn of it. With known they know that there is a limit.
func (r *roster) allot(now time.Time, ids []string, claims []claim, known bool) (slots []int, changed bool) {
	limit := r.limits().Concurrency
	if limit == 0 {
		return nil, known
	}
	held := make([]int, len(ids))
	wants := make([]claim, len(ids))
	rank := make([]float64, len(ids))
	for i, id := range ids {
		m := r.members[id]
		held[i], wants[i] = m.held, claims[i]
		if !m.Hungry {
			wants[i].want = float64(m.InFlight + 1)
		}
		// Where there are fewer slots than members, those take turns that have waited,
		// with those that had one for longest.
		rank[i] = now.Sub(m.since).Seconds()
		if m.slots > 0 || rank[i] < slotSec {
			rank[i] = -rank[i]
		}
	}
	slots = allot(limit, wants, held, rank)
	for i, id := range ids {
		m := r.members[id]
		changed = changed || slots[i] != m.slots
		if (slots[i] > 0) != (m.slots > 0) {
			m.since = now
		}
	}
	return slots, changed || !known
}

// demand returns how many calls all members have in flight, and whether one of them waits
// for turns.
func (r *roster) demand() (inFlight int, hungry bool) {
	for _, m := range r.members {
		inFlight += m.InFlight
		hungry = hungry || m.Hungry
	}
	return inFlight, hungry
}

// limits returns the lowest limits that any member has set.
func (r *roster) limits() Limits {
	lowest := r.before
	for _, m := range r.members {
		lowest = lowest.lower(m.Limits)
	}
	return lowest
}

// find returns a member's place. Without one it is zero, as its share is.
func (r *roster) find(id string) (p place, ok bool) {
	i, ok := slices.BinarySearchFunc(r.places, id, func(p place, id string) int { return cmp.Compare(p.ID, id) })
	if ok {
		p = r.places[i]
	}
	return p, ok
}
