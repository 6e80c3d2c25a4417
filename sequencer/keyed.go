package sequencer

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
)

// ErrFinished means that the row was finished in an earlier life, see [NewKeyed], so [Keyed.Skip] takes it.
var ErrFinished = errors.New("row is finished already")

// Mark says how far the rows of the input are finished: all up to Low, and Ahead others above it.
type Mark struct {
	Low   uint64
	Ahead int
}

// Keyed is a reorder buffer in which every key has an order of its own: a row is ready when all earlier rows of its key
// have their values, whatever other keys wait for. Beside that it knows the low-water mark, the sequence up to which
// every row is finished, and the rows above it that are.
//
// A row enters with [Keyed.Open], or [Keyed.OpenFree] where it waits for no other; gets its value with
// [Keyed.Complete]; and leaves with [Keyed.Release]. A row that was finished in an earlier life enters with
// [Keyed.Skip]. Rows enter in the order of their sequences, which may have gaps.
//
// All calls take constant time, amortised, but for what their comments say; where sequences have gaps a row is found in
// logarithmic time. None allocates once the buffer has grown to the rows and keys in use. A row above the mark takes 16
// bytes until the mark has passed it, so a span of 65,536 takes 1 MiB; only a row held takes more. Keyed is made by
// [NewKeyed]; it is not safe for concurrent use, and nothing in it blocks.
type Keyed[T any] struct {
	limits Limits
	span   int

	// places are the rows above the low-water mark that have entered, in stream order. The first one is never finished:
	// it would be below the mark.
	places ring[place]
	passed uint64 // places that the mark has passed, ever: the number of the first one
	low    uint64
	// finished counts the places whose rows are finished. known are rows finished in an earlier life that have not come
	// again; sorted, all above the last place.
	finished int
	known    []uint64

	slots []slot[T] // the rows held, and unused ones
	spare []int32   // the unused ones
	held  int
	bytes int64

	queues      []queue          // those in use, and unused ones
	spareQueues []int32          // the unused ones
	byKey       map[string]int32 // of the keys that have a row in their queue
	waiting     int              // queues in which a complete row waits
	asides      asides           // the rows set aside
	reserve     Limits           // see [Keyed.Reserve]

	parked   int
	readmits []uint64 // rows that Readmit takes back next, and some that it no longer should

	ready     ring[int32] // slots of the rows that may leave, in this order
	completed int
	// waitingBytes is the sum of the complete rows that are not ready.
	waitingBytes int64

	released     uint64 // rows, ever
	submitIndex  uint64 // of the next row opened
	completeNext uint64 // index of the next row completed
}

// slot is a row that is held. It is in the queue of its key until it is ready.
type slot[T any] struct {
	Entry[T]
	place uint64 // number of its place
	queue int32  // of its key; none: it is free, or ready
	next  int32  // in its queue
	// exit is the number of the release that the row leaves with, counted from 1; 0: it is not ready.
	exit uint64
}

// queue holds the rows of one key that are not ready, in stream order. The first of them is not complete.
type queue struct {
	key         string
	first, last int32      // none: there is no such row
	complete    int        // how many of them are
	aside       asideQueue // the rows that follow
}

// What slot is of a place without one; a row set aside has a number below.
const (
	none = -1 // its row is finished
	gone = -2 // there is no row any more
)

// NewKeyed returns a buffer for the rows above low, or what is wrong with the arguments. span bounds how many rows above
// the low-water mark may have entered, those that are finished among them; it is at least limits.Rows. finished are the
// rows above low that were finished in an earlier life, in rising order: they are taken in whether there is room or not.
// The slice belongs to the buffer from then on.
func NewKeyed[T any](limits Limits, span int, low uint64, finished []uint64) (*Keyed[T], error) {
	if err := limits.Validate(); err != nil {
		return nil, err
	}
	if span < limits.Rows {
		return nil, fmt.Errorf("span of %d rows is smaller than the window of %d", span, limits.Rows)
	}
	before := low
	for _, seq := range finished {
		if seq <= before {
			return nil, fmt.Errorf("finished row seq %d after %d: sequences must rise above the low-water mark", seq, before)
		}
		before = seq
	}
	return &Keyed[T]{limits: limits, span: span, low: low, known: finished, byKey: make(map[string]int32)}, nil
}

// Open takes a row of a key; the empty key is one like any other. See [Buffer.Open] for sequence, bytes and errors.
// [ErrFinished] is returned for a row that must be skipped instead.
func (b *Keyed[T]) Open(seq uint64, key string, bytes int) (submitIndex uint64, err error) {
	if q, ok := b.byKey[key]; ok && b.queues[q].aside.first != none {
		return 0, fmt.Errorf("open row seq %d: earlier rows of its key are set aside: %w", seq, ErrOutOfOrder)
	}
	s, err := b.open(seq, bytes)
	if err != nil {
		return 0, err
	}
	b.enqueue(s, b.queueOf(key))
	return b.slots[s].SubmitIndex, nil
}

// queueOf returns the queue of a key, a new one if it has none.
func (b *Keyed[T]) queueOf(key string) int32 {
	if q, ok := b.byKey[key]; ok {
		return q
	}
	return b.newQueue(key)
}

// enqueue appends a row to a queue.
func (b *Keyed[T]) enqueue(s, number int32) {
	q := &b.queues[number]
	if q.first == none {
		q.first = s
	} else {
		b.slots[q.last].next = s
	}
	q.last = s
	b.slots[s].queue = number
}

// OpenFree takes a row that waits for no other. Otherwise it is [Keyed.Open].
func (b *Keyed[T]) OpenFree(seq uint64, bytes int) (submitIndex uint64, err error) {
	s, err := b.open(seq, bytes)
	if err != nil {
		return 0, err
	}
	return b.slots[s].SubmitIndex, nil
}

func (b *Keyed[T]) open(seq uint64, bytes int) (s int32, err error) {
	mustWeigh(bytes)
	switch {
	case seq <= b.last():
		return 0, fmt.Errorf("open row seq %d after %d: %w", seq, b.last(), ErrOutOfOrder)
	case b.Known(seq):
		return 0, fmt.Errorf("open row seq %d: %w", seq, ErrFinished)
	case b.Full(bytes):
		return 0, ErrFull // not wrapped, so that a refusal does not allocate
	}
	b.Pass(seq)
	s = b.newSlot(seq, bytes, b.passed+uint64(b.places.count)) //nolint:gosec // a count
	b.places.push(place{seq: seq, slot: s}, b.span)
	return s, nil
}

// newSlot returns the slot of a row that is held from now on, at the place of this number.
func (b *Keyed[T]) newSlot(seq uint64, bytes int, place uint64) (s int32) {
	if len(b.spare) == 0 {
		b.slots = append(b.slots, slot[T]{})
		s = int32(len(b.slots) - 1) //nolint:gosec // at most Limits.Rows
	} else {
		s = b.spare[len(b.spare)-1]
		b.spare = b.spare[:len(b.spare)-1]
	}
	b.slots[s] = slot[T]{
		Entry: Entry[T]{Seq: seq, SubmitIndex: b.submitIndex, Bytes: bytes},
		place: place, queue: none, next: none,
	}
	b.submitIndex++
	b.held++
	b.bytes += int64(bytes)
	return s
}

// Known reports whether a row that has not entered yet is finished, so that it is to be skipped.
func (b *Keyed[T]) Known(seq uint64) bool {
	_, found := slices.BinarySearch(b.known, seq)
	return found
}

// Skip takes a row that is [Keyed.Known] to be finished, whether there is room or not.
func (b *Keyed[T]) Skip(seq uint64) error {
	if !b.Known(seq) {
		return fmt.Errorf("skip row seq %d: it is not known to be finished", seq)
	}
	b.passKnown(seq)
	return nil
}

// Pass takes in the known rows below seq: those that come next are at or above it. They were deleted from the input
// since they were finished, and would hold the low-water mark back.
func (b *Keyed[T]) Pass(seq uint64) {
	if seq > 0 {
		b.passKnown(seq - 1)
	}
}

// passKnown takes in the known rows up to seq: those that were deleted from the input meanwhile don't come again.
func (b *Keyed[T]) passKnown(seq uint64) {
	for len(b.known) > 0 && b.known[0] <= seq {
		b.places.push(place{seq: b.known[0], slot: none}, b.span)
		b.finished++
		b.known = b.known[1:]
	}
	if len(b.known) == 0 {
		b.known = nil // the rows behind the slice are no longer needed
	}
	b.advance()
}

// Complete sets the value of an open row and returns its complete index, see [Buffer.Complete].
func (b *Keyed[T]) Complete(seq uint64, v T, bytes int) (completeIndex uint64, err error) {
	mustWeigh(bytes)
	s := b.slotOf(seq)
	if s < 0 {
		return 0, fmt.Errorf("complete row seq %d: %w", seq, ErrNotOpen)
	}
	row := &b.slots[s]
	switch {
	case row.complete:
		return 0, fmt.Errorf("complete row seq %d: %w", seq, ErrCompleted)
	case row.park != held:
		return 0, fmt.Errorf("complete row seq %d: it is parked: %w", seq, ErrNotOpen)
	}
	b.bytes += int64(bytes) - int64(row.Bytes)
	row.Value, row.Bytes, row.CompleteIndex, row.complete = v, bytes, b.completeNext, true
	b.completeNext++
	b.completed++
	b.waitingBytes += int64(bytes)
	if row.queue == none {
		b.makeReady(s)
		return row.CompleteIndex, nil
	}
	q := &b.queues[row.queue]
	if q.complete == 0 {
		b.waiting++
	}
	q.complete++
	b.moveUp(row.queue)
	return row.CompleteIndex, nil
}

// Grow adds to the weight of a row that is held and not complete, see [Buffer.Grow].
func (b *Keyed[T]) Grow(seq uint64, bytes int) {
	mustWeigh(bytes)
	s := b.slotOf(seq)
	if s < 0 || b.slots[s].complete {
		panic(fmt.Sprintf("sequencer: row %d is not open, and grows", seq))
	}
	b.slots[s].Bytes += bytes
	b.bytes += int64(bytes)
}

// moveUp makes the complete rows at the beginning of a queue ready, if there are any. One of the queue is complete.
func (b *Keyed[T]) moveUp(number int32) {
	q := &b.queues[number]
	for q.first != none && b.slots[q.first].complete {
		s := q.first
		q.first = b.slots[s].next
		q.complete--
		b.slots[s].queue = none
		b.makeReady(s)
	}
	if q.complete == 0 {
		b.waiting--
	}
	if q.first != none {
		b.readmitNext(q.first)
	}
	b.dropEmpty(number)
}

// dropEmpty forgets a key without rows.
func (b *Keyed[T]) dropEmpty(number int32) {
	if q := &b.queues[number]; q.first == none && q.aside.first == none {
		delete(b.byKey, q.key)
		*q = queue{}
		b.spareQueues = append(b.spareQueues, number)
	}
}

func (b *Keyed[T]) makeReady(s int32) {
	b.ready.push(s, b.limits.Rows)
	b.waitingBytes -= int64(b.slots[s].Bytes)
	b.slots[s].exit = b.released + uint64(b.ready.count) //nolint:gosec // a count
}

func (b *Keyed[T]) newQueue(key string) int32 {
	q := int32(len(b.queues)) //nolint:gosec // at most the span
	if n := len(b.spareQueues); n > 0 {
		q = b.spareQueues[n-1]
		b.spareQueues = b.spareQueues[:n-1]
	} else {
		b.queues = append(b.queues, queue{})
	}
	b.queues[q] = queue{key: key, first: none, last: none, aside: asideQueue{first: none, last: none, next: none}}
	b.byKey[key] = q
	return q
}

// Ready returns the i-th row that may leave, counted from 0: rows of one key in stream order, those of different keys as
// they became ready. The entry is the buffer's own: it is valid until the next Open or Release.
func (b *Keyed[T]) Ready(i int) (e *Entry[T], ok bool) {
	if i < 0 || i >= b.ready.count {
		return nil, false
	}
	return &b.slots[*b.ready.at(i)].Entry, true
}

// Marks yields the mark after each of the first n ready rows has been released. It takes time for n and for the rows that
// the low-water mark passes.
func (b *Keyed[T]) Marks(n int) iter.Seq[Mark] {
	return func(yield func(Mark) bool) {
		m, at := b.Mark(), 0
		for i := range min(n, b.ready.count) {
			m.Ahead++
			released := b.released + uint64(i) + 1 //nolint:gosec // a count
			for ; at < b.places.count; at++ {
				p := b.places.at(at)
				if p.slot < gone || p.slot >= 0 && (b.slots[p.slot].exit == 0 || b.slots[p.slot].exit > released) {
					break
				}
				m.Low = p.seq
				if p.slot != gone {
					m.Ahead--
				}
			}
			if !yield(m) {
				return
			}
		}
	}
}

// Mark returns the mark of what is released.
func (b *Keyed[T]) Mark() Mark { return Mark{Low: b.low, Ahead: b.finished + len(b.known)} }

// Release drops the first n ready rows and all references to their values. It panics when n is negative or fewer are
// ready.
func (b *Keyed[T]) Release(n int) {
	if n < 0 || n > b.ready.count {
		panic(fmt.Sprintf("sequencer: release of %d rows where %d are ready", n, b.ready.count))
	}
	for range n {
		s := b.ready.pop()
		row := &b.slots[s]
		b.places.at(int(row.place - b.passed)).slot = none //nolint:gosec // less than the places
		b.bytes -= int64(row.Bytes)
		*row = slot[T]{}
		b.spare = append(b.spare, s)
	}
	b.finished += n
	b.released += uint64(n)
	b.held -= n
	b.completed -= n
	b.advance()
}

// advance moves the low-water mark over the finished rows behind it.
func (b *Keyed[T]) advance() {
	for b.places.count > 0 && b.places.at(0).over() {
		p := b.places.pop()
		b.low = p.seq
		b.passed++
		if p.slot == none {
			b.finished--
		}
	}
}

// Finished reports whether a row is finished: it is at or below the low-water mark, released, or known.
func (b *Keyed[T]) Finished(seq uint64) bool {
	if seq <= b.low || b.Known(seq) {
		return true
	}
	i, ok := b.find(seq)
	return ok && b.places.at(i).over()
}

// WaitsFor returns the row that an open row waits for: the first of its key that is not complete and comes before it; ok
// is false where there is none, or no such row is open.
func (b *Keyed[T]) WaitsFor(seq uint64) (before uint64, ok bool) {
	s := b.slotOf(seq)
	if s < 0 || b.slots[s].queue == none {
		return 0, false
	}
	before = b.slots[b.queues[b.slots[s].queue].first].Seq
	return before, before != seq
}

// First returns the row of a key that the others of the key wait for; ok is false where none of it is held that is not
// ready. waits says whether complete rows wait for it.
func (b *Keyed[T]) First(key string) (seq uint64, waits, ok bool) {
	q, ok := b.byKey[key]
	if !ok || b.queues[q].first == none {
		return 0, false, false
	}
	return b.slots[b.queues[q].first].Seq, b.queues[q].complete > 0, true
}

// Waiting returns how many keys have complete rows that wait for an earlier one.
func (b *Keyed[T]) Waiting() int { return b.waiting }

// WaitedFor returns the oldest row that complete rows of its key wait for, and the key. It takes time for each key that
// has rows.
func (b *Keyed[T]) WaitedFor() (seq uint64, key string, ok bool) {
	for i := range b.queues {
		q := &b.queues[i]
		if q.complete == 0 {
			continue
		}
		if first := b.slots[q.first].Seq; !ok || first < seq {
			seq, key, ok = first, q.key, true
		}
	}
	return seq, key, ok
}

// Len returns the rows held: opened and neither parked nor released.
func (b *Keyed[T]) Len() int { return b.held }

// Completed returns the rows held that have their value.
func (b *Keyed[T]) Completed() int { return b.completed }

// Bytes returns the weight of the rows held.
func (b *Keyed[T]) Bytes() int64 { return b.bytes }

// WaitingBytes returns the weight of the complete rows that wait for others of their keys.
func (b *Keyed[T]) WaitingBytes() int64 { return b.waitingBytes }

// Head returns the oldest row that is not released, be it set aside; ok is false when there is none.
func (b *Keyed[T]) Head() (seq uint64, ok bool) {
	if b.places.count == 0 {
		return 0, false
	}
	return b.places.at(0).seq, true
}

// last is the sequence of the newest row that has entered.
func (b *Keyed[T]) last() uint64 {
	if b.places.count == 0 {
		return b.low
	}
	return b.places.at(b.places.count - 1).seq
}

// slotOf returns the slot of a row that is held; less than 0: it is not.
func (b *Keyed[T]) slotOf(seq uint64) int32 {
	i, ok := b.find(seq)
	if !ok {
		return none
	}
	return b.places.at(i).slot
}

// place is a row above the low-water mark.
type place struct {
	seq  uint64
	slot int32
}

// over reports whether the place keeps the low-water mark from passing no longer.
func (p *place) over() bool { return p.slot == none || p.slot == gone }

// find returns the index of the place of a row. See [Buffer.find] for how few places it looks at.
func (b *Keyed[T]) find(seq uint64) (i int, ok bool) {
	if b.places.count == 0 {
		return 0, false
	}
	last := b.places.count - 1
	first, end := b.places.at(0).seq, b.places.at(last).seq
	if seq < first || seq > end {
		return 0, false
	}
	lo, hi := last-int(min(end-seq, uint64(last))), int(min(seq-first, uint64(last)))
	if b.places.at(hi).seq == seq {
		return hi, true
	}
	i = lo + sort.Search(hi-lo, func(k int) bool { return b.places.at(lo+k).seq >= seq })
	return i, b.places.at(i).seq == seq
}
