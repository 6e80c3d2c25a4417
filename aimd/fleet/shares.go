package fleet

import (
	"cmp"
	"math"
	"slices"
)

// idleShare is the least that a member has of its fair share, so that one which has had
// nothing to do can begin.
const idleShare = 0.03

// claim is what a member wants of a rate.
type claim struct {
	weight float64 // against others while all want more than there is
	want   float64 // calls per second; infinite: all that it can get
}

// divide returns the share of a rate, from 0 to 1, for each claim: max-min fairness by
// weight. No claim gets less than it wants while another gets more for its weight. The
// rest that nobody wants goes to all by weight, so a member that suddenly wants more has
// room. For example, with 100/s and claims of equal weight for 10, 60 and 60, the second
// and third get 45 each. The shares are then 0.1, 0.45 and 0.45.
func divide(rate float64, claims []claim) []float64 {
	order := make([]int, len(claims))
	weights := 0.0
	for i, c := range claims {
		order[i] = i
		weights += c.weight
	}
	all := weights
	wants := func(i int) float64 { return max(claims[i].want, idleShare*rate*claims[i].weight/all) }
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(wants(a)/claims[a].weight, wants(b)/claims[b].weight), cmp.Compare(a, b))
	})
	shares := make([]float64, len(claims))
	left := rate
	for _, i := range order {
		shares[i] = min(wants(i), left*claims[i].weight/weights)
		left -= shares[i]
		weights -= claims[i].weight
	}
	for i, c := range claims {
		shares[i] = (shares[i] + max(0, left)*c.weight/all) / rate
	}
	return shares
}

// space returns the turns, counted over all members from now on, at which each member has
// its next one, in the order in which they are due. Members with about the same share are
// spread evenly over a round; members of equal weight that all want more than there is
// have the same share. Members that move in a bunch overrun a small bucket at any rate.
// Nobody waits longer than from one of its turns to the next.
func space(shares, due []float64) []float64 {
	order := make([]int, len(shares))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(shares[b], shares[a]), cmp.Compare(a, b)) })
	next := slices.Clone(due)
	shift := 1.0
	for len(order) > 0 {
		n, sum := 0, 0.0
		for n < len(order) && shares[order[n]] >= alike*shares[order[0]] {
			sum += shares[order[n]]
			n++
		}
		if group := order[:n]; n > 1 {
			slices.SortStableFunc(group, func(a, b int) int { return cmp.Compare(due[a], due[b]) })
			for k, i := range group {
				next[i] = min((float64(k)+shift)/sum, 1/shares[i])
			}
		}
		order = order[n:]
		shift = math.Mod(shift+golden, 1) // so that the rounds of two groups do not meet
	}
	return next
}

const (
	// alike is the least part of a group's largest share that each share in the group has.
	alike = 0.8
	// golden is the step at which points come to lie evenly between 0 and 1, however many
	// they are.
	golden = 0.618033988749895
)

// allot divides a number of calls in flight among claims, as divide does with a rate, in
// whole numbers. held has the calls that each member may still have by its last grant: no
// new grant lets the sum exceed the limit. The largest fractions are rounded up. Where
// two are about equal, the member of the higher rank comes first.
func allot(limit int, claims []claim, held []int, rank []float64) []int {
	shares := divide(float64(limit), claims)
	slots := make([]int, len(claims))
	rest := make([]float64, len(claims))
	order := make([]int, len(claims))
	free, room := limit, limit
	for i, s := range shares {
		exact := s * float64(limit)
		slots[i] = int(exact + 1e-9)
		rest[i] = exact - float64(slots[i])
		order[i] = i
		free -= slots[i]
		room -= held[i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(math.Ceil(10*rest[b]), math.Ceil(10*rest[a])), cmp.Compare(rank[b], rank[a]))
	})
	for _, i := range order[:max(0, min(free, len(order)))] {
		slots[i]++
	}
	for _, i := range order {
		if more := slots[i] - held[i]; more > 0 {
			granted := max(0, min(more, room))
			slots[i] = held[i] + granted
			room -= granted
		}
	}
	return slots
}
