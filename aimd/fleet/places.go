package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// arrange drops members that are silent or have left, and gives all new places where
// their shares have changed.
func (l *leader) arrange(now time.Time) (changed bool) {
	lost := 0.0
	for id, m := range l.members {
		if m.Bye || id != l.id && now.Sub(m.heard) > silent {
			if !m.Bye {
				lost += l.share(id)
			}
			delete(l.members, id)
			changed = true
		}
	}
	if e := l.law.Estimate(); lost > 0.5 && e > 0 {
		// Most are gone at once, so they are on the other side of a partition, with a
		// leader of their own, and use the server as well.
		l.law.Resume(now, e*max(1-lost, 0.01))
	}
	ids := slices.Sorted(maps.Keys(l.members))
	claims := make([]claim, len(ids))
	for i, id := range ids {
		m := l.members[id]
		claims[i] = claim{m.Weight, m.Want}
		if m.Hungry {
			claims[i].want = math.Inf(1)
		}
	}
	shares := divide(max(l.rate(now), 0.01), claims)
	slots, granted := l.allot(now, ids, claims)
	changed = changed || granted || len(ids) != len(l.places)
	for i, id := range ids {
		old := l.share(id)
		changed = changed || old == 0 || math.Abs(shares[i]/old-1) > moved
	}
	if changed {
		l.place(now, ids, shares, slots)
	}
	return changed
}

// place gives all members new places. Each keeps how far it is on the way to its next
// turn, so that changes of places, however many, take no turn from anybody.
func (l *leader) place(now time.Time, ids []string, shares []float64, slots []int) {
	turns := l.turns(now)
	due := make([]float64, len(ids))
	for i, id := range ids {
		phase := math.Mod(float64(i)*golden, 1) // a new member starts anywhere, but not where others are
		if p := l.find(id); p != nil {
			at := float64(p.Offset) + float64(p.Share)*turns
			phase = at - math.Floor(at)
		}
		due[i] = (1 - phase) / shares[i]
	}
	l.places = l.places[:0]
	for i, next := range space(shares, due) {
		share := float64(float32(shares[i]))
		at := share * (turns + next)
		p := place{ID: ids[i], Share: float32(shares[i]), Offset: float32(math.Ceil(at) - at)}
		if slots != nil {
			p.Slots = slots[i]
			l.members[ids[i]].slots = slots[i]
			l.members[ids[i]].held = max(l.members[ids[i]].held, slots[i])
		}
		l.places = append(l.places, p)
	}
	l.ring++
}

// allot divides the account's limit on calls in flight, if there is one.
func (l *leader) allot(now time.Time, ids []string, claims []claim) (slots []int, changed bool) {
	limit := l.concurrency()
	if limit == 0 {
		return nil, l.last != nil && l.last.Slots
	}
	held := make([]int, len(ids))
	wants := make([]claim, len(ids))
	rank := make([]float64, len(ids))
	for i, id := range ids {
		m := l.members[id]
		held[i], wants[i] = m.held, claim{m.Weight, claims[i].want}
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
		m := l.members[id]
		changed = changed || slots[i] != m.slots
		if (slots[i] > 0) != (m.slots > 0) {
			m.since = now
		}
	}
	return slots, changed || l.last == nil || !l.last.Slots
}

// concurrency is the most calls in flight over all members; 0 means no limit.
func (l *leader) concurrency() int {
	return l.least(func(r *report) int { return r.Concurrency })
}

// least returns the lowest limit that any member has set; 0 means that none has.
func (l *leader) least(of func(*report) int) (limit int) {
	limit = of(&l.limits)
	for _, m := range l.members {
		if n := of(&m.report); n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	return limit
}

func (l *leader) find(id string) *place {
	i, ok := slices.BinarySearchFunc(l.places, id, func(p place, id string) int { return cmp.Compare(p.ID, id) })
	if !ok {
		return nil
	}
	return &l.places[i]
}

func (l *leader) share(id string) float64 {
	if p := l.find(id); p != nil {
		return float64(p.Share)
	}
	return 0
}
