package spread

import (
	"cmp"
	"slices"
)

// member is a replica that takes part in the spread, and the partitions that it serves at
// the moment: those that are its own, and those that it took over because their assigned
// replica did not serve them.
type member struct {
	id    string
	owned []int
	taken []int
	// avoids reports that another member should have a partition rather than this one. It
	// is nil for a member that avoids none.
	avoids func(partition int) bool
}

// assign returns the id of the member that each partition should have; with no members
// each has "". Each of R members gets a share of P/R partitions, and P mod R members get
// one more. For example, of 8 partitions 3 members get 3, 3 and 2.
//
// A member keeps the partitions that it owns, up to its share. The larger shares go to
// members that would otherwise have to give one up, so the fewest partitions move. If its
// share has room after that, it keeps what it took over. So a neglected partition never
// displaces one that is rightly owned. If several members claim a partition, the first in
// the order of ids has it.
//
// A member that avoids a partition gets it only if all avoid it. The member that has it
// then keeps it rather than others: for a moment it has a larger share, and gives up
// another partition.
//
// The remaining partitions go round the members in turn. The turn of a partition depends
// on its number alone, so while replicas that start together claim one partition after
// the other, the places of the remaining ones stay the same.
//
// Equal views give equal answers, so the members need not agree on anything.
func assign(members []member, partitions int) []string {
	to := make([]string, partitions)
	if len(members) == 0 {
		return to
	}
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.id, b.id) })
	shunned := shunnedBy(members, partitions)
	avoids := func(i, p int) bool {
		return shunned[p] > 0 && shunned[p] < len(members) &&
			members[i].avoids != nil && members[i].avoids(p)
	}
	owner := make([]string, partitions)
	for i := range members {
		owned := slices.Sorted(slices.Values(members[i].owned))
		members[i].owned = slices.DeleteFunc(owned, func(p int) bool {
			if p < 0 || p >= partitions || owner[p] != "" || avoids(i, p) {
				return true
			}
			owner[p] = members[i].id
			return false
		})
		slices.SortStableFunc(members[i].owned,
			func(a, b int) int { return cmp.Compare(shunned[b], shunned[a]) })
	}
	room := rooms(members, partitions)
	for _, m := range members {
		for _, p := range m.owned[:min(room[m.id], len(m.owned))] {
			to[p] = m.id
		}
		room[m.id] = max(0, room[m.id]-len(m.owned))
	}
	give := func(p, i int) {
		if id := members[i].id; p >= 0 && p < partitions && to[p] == "" && room[id] > 0 && !avoids(i, p) {
			to[p] = id
			room[id]--
		}
	}
	for i := range members {
		for _, p := range slices.Sorted(slices.Values(members[i].taken)) {
			give(p, i)
		}
	}
	for p := range to {
		for turn := 0; to[p] == "" && turn < len(members); turn++ {
			give(p, (p+turn)%len(members))
		}
	}
	for p := range to {
		if to[p] == "" { // there is room only where it is avoided
			to[p] = least(members, to, func(i int) bool { return !avoids(i, p) })
		}
	}
	return to
}

// shunnedBy counts for each partition the members that avoid it.
func shunnedBy(members []member, partitions int) []int {
	by := make([]int, partitions)
	for i := range members {
		if members[i].avoids == nil {
			continue
		}
		for p := range by {
			if members[i].avoids(p) {
				by[p]++
			}
		}
	}
	return by
}

// least is the member that has been given fewest partitions, of those that may have one.
func least(members []member, to []string, may func(i int) bool) (id string) {
	given := make(map[string]int, len(members))
	for _, id := range to {
		given[id]++
	}
	for i := range members {
		if may(i) && (id == "" || given[members[i].id] < given[id]) {
			id = members[i].id
		}
	}
	return id
}

// rooms are the shares of the members. The larger ones go to those that would otherwise
// have to give up one more.
func rooms(members []member, partitions int) map[string]int {
	few, larger := partitions/len(members), partitions%len(members)
	room := make(map[string]int, len(members))
	for _, gives := range []bool{true, false} {
		for _, m := range members {
			if gives != (len(m.owned) > few) {
				continue
			}
			room[m.id] = few
			if larger > 0 {
				room[m.id]++
				larger--
			}
		}
	}
	return room
}
