// Package turns lets keys that share a queue take turns, so that one with a thousand
// items does not hold up one with a single item.
package turns

import "slices"

// Queue holds items by key. Keys that have any take turns, one item a turn, and one that
// joins is last in the present turn: between any two calls of Pop, the counts of keys
// that had items throughout differ by at most one. So if each key has one item, or all
// have the same key, items come out in the order in which they came.
//
// Calls take constant time, except Remove, Resume (the keys set aside), and Push where it
// has to insert. A key without items costs nothing, and in steady state no call
// allocates. A Queue is not safe for concurrent use.
type Queue[T any] struct {
	compare func(a, b T) int
	size    int
	lines   map[string]*line[T] // of the keys with items
	turns   chain[T]            // of those that may be next, in the order of their turns
	aside   chain[T]            // the others, see SetAside
	idle    []*line[T]          // without a key, to be used again
	room    int                 // for items, in those
}

// line holds the items of one key.
type line[T any] struct {
	key        string
	items      []T
	gone       int // items that have been taken; those behind them wait
	aside      bool
	prev, next *line[T] // in its chain
}

// Bounds of what is kept to be used again: lines, and room for items in all of them.
const (
	idleLinesMax = 1 << 10
	idleRoomMax  = 1 << 16
)

// New returns an empty queue. Compare gives the order of the items of a key, as for
// [slices.SortFunc]; those that are equal, or all if it is nil, are in the order in which
// they came.
func New[T any](compare func(a, b T) int) *Queue[T] {
	return &Queue[T]{compare: compare, lines: make(map[string]*line[T])}
}

// Len returns the number of items, with those of keys that are set aside.
func (q *Queue[T]) Len() int { return q.size }

// Push adds an item of a key. A key that is set aside takes part again if the item is its
// first.
func (q *Queue[T]) Push(key string, item T) {
	l := q.lines[key]
	if l == nil {
		l = q.newLine(key)
		q.turns.push(l)
	}
	at := l.place(item, q.compare)
	if l.aside && at == 0 {
		q.aside.remove(l)
		l.aside = false
		q.turns.push(l)
	}
	l.insert(at, item)
	q.size++
}

// First returns the item whose turn it is; the zero value if there is none.
func (q *Queue[T]) First() (item T) {
	if l := q.turns.first; l != nil {
		return l.items[l.gone]
	}
	return item
}

// Ready reports whether there is an item whose turn it is.
func (q *Queue[T]) Ready() bool { return q.turns.first != nil }

// Pop takes out the item whose turn it is, and ends the turn of its key. There must be one.
func (q *Queue[T]) Pop() (item T) {
	l := q.turns.first
	q.turns.remove(l)
	item = l.pop()
	q.size--
	if l.empty() {
		q.drop(l)
	} else {
		q.turns.push(l)
	}
	return item
}

// SetAside lets the key whose turn it is, which there must be, take no part until Resume
// is called.
func (q *Queue[T]) SetAside() {
	l := q.turns.first
	q.turns.remove(l)
	l.aside = true
	q.aside.push(l)
}

// Resume puts the keys that were set aside back in front of the others, whose turns come
// later.
func (q *Queue[T]) Resume() {
	for l := q.aside.last; l != nil; l = q.aside.last {
		q.aside.remove(l)
		l.aside = false
		q.turns.pushFront(l)
	}
}

// Remove takes out the items that match, and returns them: those of a key in their order.
// It asks once for each.
func (q *Queue[T]) Remove(match func(T) bool) (removed []T) {
	for _, c := range []*chain[T]{&q.aside, &q.turns} {
		for l := c.first; l != nil; {
			next := l.next
			removed = l.remove(match, removed)
			if l.empty() {
				c.remove(l)
				q.drop(l)
			}
			l = next
		}
	}
	q.size -= len(removed)
	return removed
}

func (q *Queue[T]) newLine(key string) (l *line[T]) {
	if n := len(q.idle); n > 0 {
		l, q.idle[n-1] = q.idle[n-1], nil
		q.idle = q.idle[:n-1]
		q.room -= cap(l.items)
	} else {
		l = &line[T]{}
	}
	l.key = key
	q.lines[key] = l
	return l
}

// drop forgets the key of a line that is empty and in no chain.
func (q *Queue[T]) drop(l *line[T]) {
	delete(q.lines, l.key)
	if len(q.idle) == idleLinesMax {
		return
	}
	*l = line[T]{items: l.items[:0]}
	if q.room+cap(l.items) > idleRoomMax {
		l.items = nil
	}
	q.room += cap(l.items)
	q.idle = append(q.idle, l)
}

func (l *line[T]) empty() bool { return l.gone == len(l.items) }

func (l *line[T]) waiting() []T { return l.items[l.gone:] }

// place returns where among the waiting items one belongs: mostly behind them all.
func (l *line[T]) place(item T, compare func(a, b T) int) int {
	waiting := l.waiting()
	if n := len(waiting); n == 0 || compare == nil || compare(waiting[n-1], item) <= 0 {
		return n
	}
	at, _ := slices.BinarySearchFunc(waiting, item, func(a, b T) int {
		if compare(a, b) <= 0 {
			return -1
		}
		return 1
	})
	return at
}

func (l *line[T]) insert(at int, item T) {
	if len(l.items) == cap(l.items) && l.gone > len(l.items)/2 { // rather than grow
		n := copy(l.items, l.waiting())
		clear(l.items[n:])
		l.items, l.gone = l.items[:n], 0
	}
	l.items = slices.Insert(l.items, l.gone+at, item)
}

func (l *line[T]) pop() (item T) {
	var none T
	item, l.items[l.gone] = l.items[l.gone], none // else the line would hold on to it
	l.gone++
	return item
}

func (l *line[T]) remove(match func(T) bool, removed []T) []T {
	left := slices.DeleteFunc(l.waiting(), func(item T) bool {
		matches := match(item)
		if matches {
			removed = append(removed, item)
		}
		return matches
	})
	l.items = l.items[:l.gone+len(left)]
	return removed
}

// chain is a list of lines, linked through them.
type chain[T any] struct{ first, last *line[T] }

func (c *chain[T]) push(l *line[T]) {
	l.prev, l.next = c.last, nil
	if c.last == nil {
		c.first = l
	} else {
		c.last.next = l
	}
	c.last = l
}

func (c *chain[T]) pushFront(l *line[T]) {
	l.prev, l.next = nil, c.first
	if c.first == nil {
		c.last = l
	} else {
		c.first.prev = l
	}
	c.first = l
}

func (c *chain[T]) remove(l *line[T]) {
	if l.prev == nil {
		c.first = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		c.last = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
}
