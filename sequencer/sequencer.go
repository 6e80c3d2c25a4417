// Package sequencer puts rows that finish in any order back into the order in which they came.
//
// Rows are keyed by their stream sequence. Sequences rise but may skip: a subject filter, a deletion or an expiry
// leaves gaps, so the row after 7 can be 12 and the buffer never assumes the next number. A row enters with
// [Buffer.Open], gets its value with [Buffer.Complete] whenever that is known, and leaves with [Buffer.Release] once it
// and every row before it are complete. What lies between the oldest row and the newest is the window; it is bounded
// in rows and in bytes, so one slow row at the head holds back at most a window.
//
//	b, err := sequencer.New[string](sequencer.Limits{Rows: 1024, Bytes: 256 << 20})
//	_, err = b.Open(7, len(body))                 // a row was taken
//	_, err = b.Complete(7, reply, len(reply))     // its reply is there, perhaps after those of later rows
//	for e, ok := b.Ready(0); ok; e, ok = b.Ready(0) {
//		emit(e.Value)
//		b.Release(1)
//	}
//
// [Buffer] keeps all rows in one order. [Keyed] keeps an order for each key, or none: a slow row holds back the rows of
// its key and no others. What has left by then is no longer one number, so it knows the low-water mark, up to which every
// row is finished, and the rows above it that are; and it begins from both where another has stopped.
//
//	b, err := sequencer.NewKeyed[string](limits, 65536, low, finished)
//	_, err = b.Open(7, key, len(body))            // or OpenFree, or Skip where Known(7)
//	_, err = b.Complete(7, reply, len(reply))
//	n := 0
//	for mark := range b.Marks(b.Len()) {          // as many as are ready
//		e, _ := b.Ready(n)
//		emit(e.Value, mark)
//		n++
//	}
//	b.Release(n)
//
// The package is pure: it starts no goroutine and reads no clock. A buffer belongs to one goroutine.
package sequencer

import (
	"errors"
	"fmt"
	"sort"
)

// Errors of Open and Complete, to be matched with [errors.Is].
var (
	// ErrFull means that the window has no room for the row. It is flow control rather than a failure: open the row
	// again after a release.
	ErrFull = errors.New("window is full: release rows first")
	// ErrOutOfOrder means that the sequence does not rise above every sequence opened before; for a row that was set
	// aside, that it is not its turn to come back.
	ErrOutOfOrder = errors.New("rows must come in order")
	// ErrNotOpen means that no such row is held: it was never opened, or has been released already.
	ErrNotOpen = errors.New("row is not open: it was never opened or is already released")
	// ErrCompleted means that the row already has its value. The first value stays.
	ErrCompleted = errors.New("row is already complete")
)

// Limits bounds a [Buffer] or a [Keyed]. There are no defaults: the zero value is refused.
type Limits struct {
	// Rows is the most rows held at once, at least 1. Memory for them is taken as they come, not in advance.
	Rows int
	// Bytes is the most bytes held at once, by the weights passed to Open and Complete, at least 1. It limits what is
	// taken, not what is held: a row heavier than Bytes is admitted when the buffer is empty, and a value heavier than
	// its row is never refused. Either would otherwise block the stream for good.
	Bytes int64
	// Parked is the most rows parked at once, which count in neither of the two. 0: no row may be parked.
	Parked int
}

// Validate reports every limit that is out of range.
func (l Limits) Validate() error {
	var problems []error
	if l.Rows < 1 {
		problems = append(problems, fmt.Errorf("window rows %d: must be at least 1", l.Rows))
	}
	if l.Bytes < 1 {
		problems = append(problems, fmt.Errorf("window bytes %d: must be at least 1", l.Bytes))
	}
	if l.Parked < 0 {
		problems = append(problems, fmt.Errorf("parked rows %d: must be at least 0", l.Parked))
	}
	return errors.Join(problems...)
}

// Entry is one row in a [Buffer] or a [Keyed].
type Entry[T any] struct {
	// Seq is the row's stream sequence.
	Seq uint64
	// SubmitIndex is the row's place among all rows opened, from 0 without gaps.
	SubmitIndex uint64
	// CompleteIndex is the row's place among all rows completed, from 0 without gaps. Where it is not SubmitIndex,
	// the row was overtaken or overtook others.
	CompleteIndex uint64
	// Value is what the row was completed or parked with.
	Value T
	// Bytes is the row's weight: that of Open until the row is complete, then that of Complete.
	Bytes int

	complete bool
	park     park
}

// Buffer is a reorder buffer: a ring of rows in stream order. It is made by [New]; the zero value has no room. It is
// not safe for concurrent use, and nothing in it blocks.
//
// Open, Complete and Release take constant time, amortised, as long as sequences come without gaps; with gaps Complete
// searches among the rows that could have the number, in logarithmic time. No call allocates once the ring has grown to
// the rows in use.
type Buffer[T any] struct {
	limits Limits

	ring  []Entry[T] // rows are ring[head], ring[head+1], … around the end, rising in Seq
	head  int
	count int // rows held or parked; at most len(ring), which is at most limits.Rows and limits.Parked

	parked     int // of count
	readmitted int // rows from the head that Readmit has looked at

	ready     int   // rows from the head that are complete without a hole; ready <= completed <= count - parked
	completed int   // rows held that are complete
	bytes     int64 // sum of Entry.Bytes of the rows held

	lastSeq      uint64 // highest sequence ever opened; 0 before the first
	submitIndex  uint64 // of the next row opened
	completeNext uint64 // index of the next row completed
}

// ringMin is the first size of the ring: small enough to cost nothing on an idle partition.
const ringMin = 16

// ringDoubles is the size up to which the ring doubles when it grows.
const ringDoubles = 1 << 16

// New returns an empty buffer, or what is wrong with the limits.
func New[T any](limits Limits) (*Buffer[T], error) {
	if err := limits.Validate(); err != nil {
		return nil, err
	}
	return &Buffer[T]{limits: limits}, nil
}

// Open takes a row into the window and returns its submit index. The sequence must be above every one opened before, so
// at least 1, and may skip; bytes is the row's weight against [Limits.Bytes], at least 0.
//
// It returns [ErrOutOfOrder] for a sequence that does not rise and [ErrFull] when there is no room; in both cases
// nothing has changed.
func (b *Buffer[T]) Open(seq uint64, bytes int) (submitIndex uint64, err error) {
	mustWeigh(bytes)
	if seq <= b.lastSeq {
		return 0, fmt.Errorf("open row seq %d after %d: %w", seq, b.lastSeq, ErrOutOfOrder)
	}
	if b.Full(bytes) {
		return 0, ErrFull // not wrapped, so that a refusal does not allocate
	}
	if b.count == len(b.ring) {
		b.grow()
	}
	e := b.at(b.count)
	e.Seq, e.SubmitIndex, e.Bytes = seq, b.submitIndex, bytes
	b.count++
	b.bytes += int64(bytes)
	b.lastSeq = seq
	b.submitIndex++
	return e.SubmitIndex, nil
}

// Complete sets the value of an open row and returns its complete index. From then on bytes, at least 0, is the row's
// weight in place of the one passed to Open.
//
// It returns [ErrNotOpen] for a row that was never opened or is released, and [ErrCompleted] for one that has its
// value; in both cases nothing has changed.
func (b *Buffer[T]) Complete(seq uint64, v T, bytes int) (completeIndex uint64, err error) {
	mustWeigh(bytes)
	i, ok := b.find(seq)
	if !ok {
		return 0, fmt.Errorf("complete row seq %d: %w", seq, ErrNotOpen)
	}
	e := b.at(i)
	switch {
	case e.complete:
		return 0, fmt.Errorf("complete row seq %d: %w", seq, ErrCompleted)
	case e.park != held:
		return 0, fmt.Errorf("complete row seq %d: it is parked: %w", seq, ErrNotOpen)
	}
	b.bytes += int64(bytes) - int64(e.Bytes)
	e.Value, e.Bytes, e.CompleteIndex, e.complete = v, bytes, b.completeNext, true
	b.completeNext++
	b.completed++
	for b.ready < b.count && b.at(b.ready).complete {
		b.ready++
	}
	return e.CompleteIndex, nil
}

// Ready returns the i-th row from the head, counted from 0, as long as it and all rows before it are complete. The
// entry is the buffer's own: it is valid until the next Open or Release.
func (b *Buffer[T]) Ready(i int) (e *Entry[T], ok bool) {
	if i < 0 || i >= b.ready {
		return nil, false
	}
	return b.at(i), true
}

// Grow adds to the weight of a row that is held and not complete: parts of its value are there. It panics where there is
// no such row, as [Buffer.Complete] would return an error.
func (b *Buffer[T]) Grow(seq uint64, bytes int) {
	mustWeigh(bytes)
	i, ok := b.find(seq)
	if !ok || b.at(i).complete {
		panic(fmt.Sprintf("sequencer: row %d is not open, and grows", seq))
	}
	b.at(i).Bytes += bytes
	b.bytes += int64(bytes)
}

// Release drops the first n rows and all references to their values. It panics when n is negative or any of these rows
// is not complete: to skip an unfinished row would break the order that the buffer is for.
func (b *Buffer[T]) Release(n int) {
	if n < 0 || n > b.ready {
		panic(fmt.Sprintf("sequencer: release of %d rows where %d are ready", n, b.ready))
	}
	for range n {
		e := b.at(0)
		b.bytes -= int64(e.Bytes)
		*e = Entry[T]{}
		b.head = b.wrap(b.head + 1)
	}
	b.count -= n
	b.ready -= n
	b.completed -= n
	b.readmitted = max(0, b.readmitted-n)
}

// Len returns the rows held: opened and neither parked nor released.
func (b *Buffer[T]) Len() int { return b.count - b.parked }

// Completed returns the rows held that have their value, so Len less Completed is the rows still being worked on.
func (b *Buffer[T]) Completed() int { return b.completed }

// Bytes returns the weight of the rows held.
func (b *Buffer[T]) Bytes() int64 { return b.bytes }

// Full reports whether [Buffer.Open] would refuse a row of this weight for lack of room.
func (b *Buffer[T]) Full(bytes int) bool {
	held := b.Len()
	return held >= b.limits.Rows || held > 0 && int64(bytes) > b.limits.Bytes-b.bytes || b.count >= b.limits.Rows+b.limits.Parked
}

// Head returns the sequence of the oldest row held or parked, the one that all others wait for; ok is false when there
// is none.
func (b *Buffer[T]) Head() (seq uint64, ok bool) {
	if b.count == 0 {
		return 0, false
	}
	return b.at(0).Seq, true
}

// Blocker returns the sequence of the oldest row held or parked that is not complete: the one that all rows behind it
// wait for; ok is false when all are complete, or there are none.
func (b *Buffer[T]) Blocker() (seq uint64, ok bool) {
	if b.ready == b.count {
		return 0, false
	}
	return b.at(b.ready).Seq, true
}

// find returns the row's place from the head.
//
// Sequences rise by at least one from row to row. So a row lies at most seq-first rows behind the head and at most
// last-seq rows before the tail. Without gaps the two bounds meet and the first guess is the row; with g numbers
// skipped in the window at most g+1 places are left to search.
func (b *Buffer[T]) find(seq uint64) (i int, ok bool) {
	if b.count == 0 {
		return 0, false
	}
	last := b.count - 1
	first, end := b.at(0).Seq, b.at(last).Seq
	if seq < first || seq > end {
		return 0, false
	}
	lo, hi := last-int(min(end-seq, uint64(last))), int(min(seq-first, uint64(last)))
	if b.at(hi).Seq == seq {
		return hi, true
	}
	i = lo + sort.Search(hi-lo, func(k int) bool { return b.at(lo+k).Seq >= seq })
	return i, b.at(i).Seq == seq
}

// at returns the i-th row from the head; i may be count, the place of the next row, when the ring has room.
func (b *Buffer[T]) at(i int) *Entry[T] { return &b.ring[b.wrap(b.head+i)] }

// wrap takes an index below twice the ring's length into the ring. It subtracts, so that the ring may have any length
// and never be larger than Limits.Rows, where masking would ask for a power of two.
func (b *Buffer[T]) wrap(i int) int {
	if i >= len(b.ring) {
		i -= len(b.ring)
	}
	return i
}

// grow makes a larger ring, up to the limit, and moves the rows to its start.
func (b *Buffer[T]) grow() {
	more := len(b.ring)
	if more > ringDoubles {
		more /= 4 // half of a large ring unused would be too much
	}
	ring := make([]Entry[T], min(b.limits.Rows+b.limits.Parked, max(ringMin, len(b.ring)+more)))
	n := copy(ring, b.ring[b.head:])
	copy(ring[n:], b.ring[:b.head])
	b.ring, b.head = ring, 0
}

// mustWeigh panics on a negative weight, which can only be the caller's arithmetic gone wrong.
func mustWeigh(bytes int) {
	if bytes < 0 {
		panic(fmt.Sprintf("sequencer: weight of %d bytes", bytes))
	}
}
