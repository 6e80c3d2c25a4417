package status

import "iter"

// ring keeps the last values that were added to it. It is created by [newRing].
type ring[T any] struct {
	values []T
	most   int
	next   int // index of the oldest value, which the next one replaces; 0 until the ring is full
}

// newRing returns a ring of at most that many values, 1 or more.
func newRing[T any](most int) ring[T] { return ring[T]{most: most} }

// add adds a value, in place of the oldest if the ring is full.
func (r *ring[T]) add(v T) {
	if len(r.values) < r.most {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % r.most
}

// at returns the value with an index counted from the oldest.
func (r *ring[T]) at(i int) *T { return &r.values[(r.next+i)%len(r.values)] }

// newest yields the values from the last one to the first. They may be changed in place.
func (r *ring[T]) newest() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.values {
			if !yield(r.at(len(r.values) - 1 - i)) {
				return
			}
		}
	}
}
