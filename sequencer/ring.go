package sequencer

// ringMin is the first size of a ring: small enough to cost nothing on an idle partition.
const ringMin = 16

// ring is a queue of elements without pointers, in a circular array that grows as they
// come. It may have any length: an index is taken around the end by subtraction, where
// masking would need a power of two.
type ring[E any] struct {
	items []E
	head  int // index of the first element
	count int // elements in the queue
}

// at returns the i-th element from the head.
func (r *ring[E]) at(i int) *E { return &r.items[r.wrap(r.head+i)] }

func (r *ring[E]) wrap(i int) int {
	if i >= len(r.items) {
		i -= len(r.items)
	}
	return i
}

// push adds an element at the end. A full ring doubles, but not beyond limit until that
// is exceeded.
func (r *ring[E]) push(e E, limit int) {
	if r.count == len(r.items) {
		r.grow(limit)
	}
	r.count++
	*r.at(r.count - 1) = e
}

func (r *ring[E]) grow(limit int) {
	size := max(ringMin, 2*len(r.items))
	if r.count < limit {
		size = min(size, limit)
	}
	items := make([]E, size)
	n := copy(items, r.items[r.head:])
	copy(items[n:], r.items[:r.head])
	r.items, r.head = items, 0
}

func (r *ring[E]) pop() E {
	e := r.items[r.head]
	r.head = r.wrap(r.head + 1)
	r.count--
	return e
}
