package consumer

import (
	"cmp"
	"slices"
)

// member is a replica that takes part in the spread, and the partitions that it owns at the moment.
type member struct {
	id    string
	owned []int
}

// assign says which member each partition should have, by id; with no members each has "". Every member gets its share,
// a P/R-th of the partitions and with the first P mod R members one more, and as much of it as it can from what it owns
// already: the larger shares go to those that own most, so the fewest partitions move. Equal views give equal answers,
// so the members need not agree on anything.
func assign(members []member, partitions int) []string {
	to := make([]string, partitions)
	if len(members) == 0 {
		return to
	}
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(cmp.Compare(len(b.owned), len(a.owned)), cmp.Compare(a.id, b.id))
	})
	room := make([]int, len(members))
	for i, m := range members {
		room[i] = partitions / len(members)
		if i < partitions%len(members) {
			room[i]++
		}
		for _, p := range slices.Sorted(slices.Values(m.owned)) {
			if p >= 0 && p < partitions && to[p] == "" && room[i] > 0 {
				to[p] = m.id
				room[i]--
			}
		}
	}
	for p := range to {
		if to[p] != "" {
			continue
		}
		most := 0
		for i := range room {
			if room[i] > room[most] {
				most = i
			}
		}
		to[p] = members[most].id
		room[most]--
	}
	return to
}
