package sequencer

import (
	"slices"
	"sort"
)

// Mark says how far the rows of the input are finished: all rows up to Low are, and as many
// above it as Ahead says.
type Mark struct {
	Low   uint64
	Ahead int
}

// line holds the rows above the low-water mark, of all keys, in stream order.
type line struct {
	// places are the rows that have entered. The first one is never finished: it would be
	// below the mark.
	places ring[place]
	span   int // the most places, as long as no more rows are known
	low    uint64
	// finished counts the places whose rows are finished.
	finished int
	// known are rows finished in an earlier life that have not come again, in rising
	// order. All of them lie above the last place.
	known []uint64
}

// place is a row above the low-water mark.
type place struct {
	seq  uint64
	slot int32 // number of its slot, or one of the constants below
}

const (
	none = -1 // no slot, row or queue; as the slot of a place: its row is finished
	gone = -2 // the slot of a place whose row no longer exists
)

// last is the sequence of the newest row that has entered.
func (l *line) last() uint64 {
	if l.places.count == 0 {
		return l.low
	}
	return l.places.at(l.places.count - 1).seq
}

// isFull reports whether no further row may enter but one that is known.
func (l *line) isFull() bool { return l.places.count >= l.span }

func (l *line) push(p place) { l.places.push(p, l.span) }

func (l *line) isKnown(seq uint64) bool {
	_, found := slices.BinarySearch(l.known, seq)
	return found
}

// pass lets the known rows up to seq enter.
func (l *line) pass(seq uint64) {
	if len(l.known) == 0 || l.known[0] > seq {
		return
	}
	for len(l.known) > 0 && l.known[0] <= seq {
		l.push(place{seq: l.known[0], slot: none})
		l.finished++
		l.known = l.known[1:]
	}
	if len(l.known) == 0 {
		l.known = nil // so that its array can be freed
	}
	l.advance()
}

// finish notes that a row is released. The caller advances the mark afterwards.
func (l *line) finish(seq uint64) {
	i, _ := l.find(seq)
	l.places.at(i).slot = none
	l.finished++
}

// drop notes that a row no longer exists.
func (l *line) drop(seq uint64) {
	i, _ := l.find(seq)
	l.places.at(i).slot = gone
	l.advance()
}

// advance moves the low-water mark over the rows behind it that nobody waits for.
func (l *line) advance() {
	for l.places.count > 0 && l.places.at(0).slot < 0 {
		p := l.places.pop()
		l.low = p.seq
		if p.slot == none {
			l.finished--
		}
	}
}

func (l *line) mark() Mark { return Mark{Low: l.low, Ahead: l.finished + len(l.known)} }

func (l *line) isFinished(seq uint64) bool {
	if seq <= l.low || l.isKnown(seq) {
		return true
	}
	i, ok := l.find(seq)
	return ok && l.places.at(i).slot < 0
}

// find returns the index of the place of a row.
//
// Sequences rise by at least one from row to row. So a row lies at most seq-first places
// behind the head and at most last-seq places before the tail. For example, between rows
// 10 and 15 in five places, row 12 lies at index 2 at most, and at index 1 at least.
// Without gaps the two bounds meet and the first guess is the row; with g numbers skipped
// at most g+1 places are left to search.
func (l *line) find(seq uint64) (i int, ok bool) {
	if l.places.count == 0 {
		return 0, false
	}
	last := l.places.count - 1
	first, end := l.places.at(0).seq, l.places.at(last).seq
	if seq < first || seq > end {
		return 0, false
	}
	lo, hi := last-int(min(end-seq, uint64(last))), int(min(seq-first, uint64(last)))
	if l.places.at(hi).seq == seq {
		return hi, true
	}
	i = lo + sort.Search(hi-lo, func(k int) bool { return l.places.at(lo+k).seq >= seq })
	return i, l.places.at(i).seq == seq
}
