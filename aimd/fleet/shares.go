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

// divide returns the shares, of 1, in which claims have a rate: max-min fairness by
// weight. None gets less than it wants while another gets more for its weight; what
// nobody wants goes to all by weight, so that whoever wants more finds it.
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

// space returns the turns from now on, counted over all members, at which each has its
// next one: in the order in which they are due. Those with about the same share, as all
// have that want more than there is and weigh the same, are spread evenly over a round,
// as members that move in a bunch overrun a small bucket at any rate. None waits longer
// than from one of its turns to the next.
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
	// alike is how much of the largest share of a group each of it has.
	alike = 0.8
	// golden is the step at which points come to lie evenly between 0 and 1, however many
	// they are.
	golden = 0.618033988749895
)

// allot divides a number of calls in flight among claims, as divide does a rate, in whole
// numbers. Held are the calls that each may still have by what it was granted before: no
// grant lets the sum exceed the limit. Where a fraction decides, those of a higher rank
// come first.
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
