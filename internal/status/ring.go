package status

import "iter"

// ring keeps the last values that were added to it. Make it with [newRing].
type ring[T any] struct {
	values []T
	most   int
	next   int // where the next value goes, once there are most
}

// newRing returns a ring for so many values, at least 1.
func newRing[T any](most int) ring[T] { return ring[T]{most: most} }

func (r *ring[T]) add(v T) {
	if len(r.values) < r.most {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % r.most
}

// newest yields the values from the last one to the first. They may be changed in place.
func (r *ring[T]) newest() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.values {
			if !yield(&r.values[(r.next+2*len(r.values)-1-i)%len(r.values)]) {
				return
			}
		}
	}
}

// oldest yields the values from the first one to the last.
func (r *ring[T]) oldest() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.values {
			if !yield(&r.values[(r.next+i)%len(r.values)]) {
				return
			}
		}
	}
}
