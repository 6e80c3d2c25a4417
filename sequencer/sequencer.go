// Package sequencer puts rows that finish in any order back into the order in which they
// came.
//
// Order is a key: rows of the same [Key] leave in the order in which they came, and rows
// of different keys do not wait for each other. With one key for all rows the results
// come out in stream order; with a key of its own for each row they come out as they
// finish.
//
// Rows are identified by their stream sequence. Sequences rise but may skip: a subject
// filter, a deletion or an expiry leaves gaps, so the row after 7 can be 12 and the
// buffer never assumes the next number. A row enters with [Buffer.Open], gets its value
// with [Buffer.Complete], and leaves with [Buffer.Release] once it and every earlier row
// of its key are complete.
//
//	limits := sequencer.Limits{Rows: 1024, Bytes: 256 << 20, Span: 65536}
//	b, err := sequencer.New[string](limits, low, finished)
//	_, err = b.Open(7, sequencer.Key{Name: "ann"}, len(body)) // or Skip where Known(7)
//	_, err = b.Complete(7, reply, len(reply))                 // perhaps after later rows
//	n := 0
//	for mark := range b.Marks(b.Len()) { // as many as are ready
//		e, _ := b.Ready(n)
//		emit(e.Value, mark)
//		n++
//	}
//	b.Release(n)
//
// While keys overtake each other, one number cannot say which rows have left. So the
// buffer knows the low-water mark, up to which every row is finished, and the finished
// rows above it. A new buffer can begin from both where another one has stopped. For
// example, with rows 1 to 5 open and 1, 2 and 4 released, the mark is 2 and one row is
// ahead of it.
//
// A row may also be away: it keeps its place in the order, and its owner keeps only a
// small note of it. See [Buffer.Park] and [Buffer.SetAside].
//
// The package is pure: it starts no goroutine and reads no clock. A buffer belongs to one
// goroutine. Other programs may rely on the whole package but for Park, SetAside and the
// methods for rows that are away, which may change with any release.
package sequencer

import (
	"errors"
	"fmt"
	"iter"
)

// Errors of a [Buffer], to be matched with [errors.Is].
var (
	// ErrFull means that the buffer has no room for the row. It is flow control rather
	// than a failure: the row may be offered again after a release.
	ErrFull = errors.New("window is full: release rows first")
	// ErrOutOfOrder means that the sequence does not rise above every sequence seen
	// before. For a row that was set aside it means that an earlier row of its key must
	// come back first.
	ErrOutOfOrder = errors.New("rows must come in order")
	// ErrNotOpen means that no such row is held: it never entered, is away, or has been
	// released.
	ErrNotOpen = errors.New("row is not open: it was never opened or is already released")
	// ErrCompleted means that the row already has its value. The first value stays.
	ErrCompleted = errors.New("row is already complete")
	// ErrFinished means that the row was finished in an earlier life, see [New]:
	// [Buffer.Skip] takes it.
	ErrFinished = errors.New("row is finished already")
)

// Limits bounds a [Buffer]. There are no defaults: the zero value is refused.
type Limits struct {
	// Rows is the most rows held at once, at least 1. Memory for them is taken as they
	// come, not in advance.
	Rows int
	// Bytes is the most bytes held at once, by the weights passed to Open and Complete,
	// at least 1. It decides only whether another row is taken. A row heavier than Bytes
	// is admitted when the buffer is empty, and a value heavier than its row is never
	// refused: otherwise such a row would block the stream for good.
	Bytes int64
	// Span is how many rows above the low-water mark may have entered, including those
	// that are finished or away. It is at least Rows.
	Span int
	// Parked is the most rows parked at once. They count in neither Rows nor Bytes.
	Parked int
	// Shared says that many keys share the buffer, and none may fill it with rows that
	// wait: see [Buffer.Outside].
	Shared bool
}

// validate reports every limit that is out of range.
func (l Limits) validate() error {
	var problems []error
	if l.Rows < 1 {
		problems = append(problems, fmt.Errorf("window rows %d: must be at least 1", l.Rows))
	}
	if l.Bytes < 1 {
		problems = append(problems, fmt.Errorf("window bytes %d: must be at least 1", l.Bytes))
	}
	if l.Span < l.Rows {
		problems = append(problems, fmt.Errorf("span of %d rows is smaller than the window of %d", l.Span, l.Rows))
	}
	if l.Parked < 0 {
		problems = append(problems, fmt.Errorf("parked rows %d: must be at least 0", l.Parked))
	}
	return errors.Join(problems...)
}

// Key says which rows wait for each other: rows with equal keys do. The zero Key is a key
// like any other, so rows that all have it are in stream order.
type Key struct {
	Name string
	// Own is the key of one row that waits for no other. It has no Name.
	Own bool
}

// Entry is a row that is ready to leave a [Buffer].
type Entry[T any] struct {
	// Seq is the row's stream sequence.
	Seq uint64
	// SubmitIndex is the row's place among all rows opened, from 0 without gaps. A row
	// that was set aside is opened when it comes back.
	SubmitIndex uint64
	// Value is the value that the row was completed with or, while it is away, the note.
	Value T
	// Bytes is the row's weight: the one passed to Open until the row is complete, then
	// the one passed to Complete.
	Bytes int
}

// Buffer is a reorder buffer: a row is ready when all earlier rows of its key have their
// values, even while other keys wait. It is made by [New]; it is not safe for concurrent
// use, and nothing in it blocks.
//
// All calls take constant time, amortised, but for what their comments say; where
// sequences have gaps a row is found in logarithmic time. None allocates once the buffer
// has grown to the rows and keys in use. A row above the low-water mark takes 16 bytes
// until the mark has passed it, so a span of 65,536 takes 1 MiB; a row that is held or
// away takes 40 bytes and the size of T more.
type Buffer[T any] struct {
	limits Limits
	line   line     // the rows above the low-water mark
	rows   slots[T] // those of them that are held or away
	keys   queues   // the same rows by key, until they are ready
	exit   exit     // the rows that are ready
	room   room     // what all that takes of the limits

	away   int // rows that are away, including those that are coming back
	parked int // rows that are parked and not coming back
	aside  int // rows that are set aside, including those that are coming back

	submitIndex  uint64 // of the next row opened
	completeNext uint64 // index of the next row completed
}

// New returns a buffer for the rows above low, or an error about the arguments. finished
// are the rows above low that were finished in an earlier life, in rising order: they are
// taken in even if there is no room. The slice belongs to the buffer from then on.
func New[T any](limits Limits, low uint64, finished []uint64) (*Buffer[T], error) {
	if err := limits.validate(); err != nil {
		return nil, err
	}
	before := low
	for _, seq := range finished {
		if seq <= before {
			return nil, fmt.Errorf("finished row seq %d after %d: sequences must rise above the low-water mark", seq, before)
		}
		before = seq
	}
	return &Buffer[T]{
		limits: limits,
		line:   line{low: low, known: finished, span: limits.Span},
		keys:   queues{byName: make(map[string]int32), span: limits.Span},
		room:   room{limits: limits},
	}, nil
}

// Open takes a row into the window and returns its submit index. The sequence must be
// above every one seen before, so at least 1, and may skip; bytes is the row's weight
// against [Limits.Bytes], at least 0.
//
// It returns [ErrOutOfOrder] for a sequence that does not rise or while earlier rows of
// the key are set aside, [ErrFinished] for a row that must be skipped instead, and
// [ErrFull] when there is no room. In each case nothing has changed.
func (b *Buffer[T]) Open(seq uint64, key Key, bytes int) (submitIndex uint64, err error) {
	if err := b.mayEnter("open", seq, bytes); err != nil {
		return 0, err
	}
	number, exists := b.keys.find(key)
	switch {
	case exists && b.keys.at(number).aside != none:
		return 0, fmt.Errorf("open row seq %d: earlier rows of its key are set aside: %w", seq, ErrOutOfOrder)
	case b.full(bytes):
		return 0, ErrFull // not wrapped, so that a refusal does not allocate
	case !exists:
		number = b.keys.add(key)
	}
	b.hold(b.enter(seq, number, bytes))
	return b.submitIndex - 1, nil
}

// mayEnter returns why a row may not enter, or nil. It does not look at the room.
func (b *Buffer[T]) mayEnter(what string, seq uint64, bytes int) error {
	mustWeigh(bytes)
	if last := b.line.last(); seq <= last {
		return fmt.Errorf("%s row seq %d after %d: %w", what, seq, last, ErrOutOfOrder)
	}
	if b.line.isKnown(seq) {
		return fmt.Errorf("%s row seq %d: %w", what, seq, ErrFinished)
	}
	return nil
}

// enter gives a row its place in the line and in the queue of its key.
func (b *Buffer[T]) enter(seq uint64, number int32, bytes int) (s int32) {
	b.Pass(seq)
	s = b.rows.add(slot[T]{Entry: Entry[T]{Seq: seq, Bytes: bytes}, queue: number, next: none})
	b.line.push(place{seq: seq, slot: s})
	q := b.keys.at(number)
	if q.first == none {
		q.first = s
	} else {
		b.rows.at(q.last).next = s
	}
	q.last = s
	if q.look == none {
		q.look = s
	}
	return s
}

// hold opens a row that has just entered, or comes back for the first time.
func (b *Buffer[T]) hold(s int32) {
	row := b.rows.at(s)
	row.state, row.SubmitIndex = open, b.submitIndex
	b.submitIndex++
	b.room.hold(row.Bytes)
}

// Known reports whether a row that has not entered yet is finished, so that it must be
// skipped.
func (b *Buffer[T]) Known(seq uint64) bool { return b.line.isKnown(seq) }

// Skip takes a row that is [Buffer.Known] to be finished, whether there is room or not.
func (b *Buffer[T]) Skip(seq uint64) error {
	if !b.line.isKnown(seq) {
		return fmt.Errorf("skip row seq %d: it is not known to be finished", seq)
	}
	b.line.pass(seq)
	return nil
}

// Pass takes in the known rows below seq: the rows that come next are at or above it.
// Such rows were deleted from the input since they were finished, and would hold the
// low-water mark back.
func (b *Buffer[T]) Pass(seq uint64) {
	if seq > 0 {
		b.line.pass(seq - 1)
	}
}

// Complete sets the value of an open row and returns its place among all rows completed,
// counted from 0 without gaps. From then on bytes, at least 0, is the row's weight in
// place of the one passed to Open.
//
// It returns [ErrNotOpen] for a row that is not held, and [ErrCompleted] for one that has
// its value; in both cases nothing has changed.
func (b *Buffer[T]) Complete(seq uint64, v T, bytes int) (completeIndex uint64, err error) {
	mustWeigh(bytes)
	s, err := b.findOpen("complete", seq)
	if err != nil {
		return 0, err
	}
	row := b.rows.at(s)
	b.room.complete(row.Bytes, bytes)
	b.keys.complete(row.queue)
	row.Value, row.Bytes, row.state = v, bytes, complete
	b.completeNext++
	b.moveUp(row.queue)
	return b.completeNext - 1, nil
}

// findOpen returns the slot of a row that is held and has no value.
func (b *Buffer[T]) findOpen(what string, seq uint64) (s int32, err error) {
	s = b.slotOf(seq)
	switch {
	case s < 0:
		return 0, fmt.Errorf("%s row seq %d: %w", what, seq, ErrNotOpen)
	case b.rows.at(s).state.isAway():
		return 0, fmt.Errorf("%s row seq %d: it is away: %w", what, seq, ErrNotOpen)
	case b.rows.at(s).state != open:
		return 0, fmt.Errorf("%s row seq %d: %w", what, seq, ErrCompleted)
	}
	return s, nil
}

// Grow adds to the weight of a row that is held and not complete, because parts of its
// value are there. It panics where there is no such row, as [Buffer.Complete] would
// return an error.
func (b *Buffer[T]) Grow(seq uint64, bytes int) {
	mustWeigh(bytes)
	s, err := b.findOpen("grow", seq)
	if err != nil {
		panic(fmt.Sprintf("sequencer: %v", err))
	}
	row := b.rows.at(s)
	b.room.grow(bytes)
	row.Bytes += bytes
}

// moveUp makes the complete rows at the beginning of a queue ready. It takes out the
// dropped rows that it finds there, and forgets a key without rows.
func (b *Buffer[T]) moveUp(number int32) {
	q := b.keys.at(number)
	for q.first != none && b.rows.at(q.first).state.leaves() {
		s := q.first
		row := b.rows.at(s)
		q.first = row.next
		if q.look == s {
			q.look = row.next
		}
		if row.state == dropped {
			b.rows.free(s)
			continue
		}
		b.room.ready(row.Bytes)
		b.keys.ready(number)
		row.state, row.queue = ready, none
		row.exit = b.exit.push(s, b.limits.Rows)
	}
	if q.first == none {
		b.keys.drop(number)
	}
}

// Ready returns the i-th row that may leave, counted from 0: rows of one key in stream
// order, and rows of different keys as they became ready. The entry is the buffer's own:
// it is valid until the next Open, SetAside or Release.
func (b *Buffer[T]) Ready(i int) (e *Entry[T], ok bool) {
	if i < 0 || i >= b.exit.rows.count {
		return nil, false
	}
	return &b.rows.at(*b.exit.rows.at(i)).Entry, true
}

// Marks yields the mark after each of the first n ready rows has been released. It takes
// time for n and for the rows that the low-water mark passes.
func (b *Buffer[T]) Marks(n int) iter.Seq[Mark] {
	return func(yield func(Mark) bool) {
		m, at := b.Mark(), 0
		for i := range min(n, b.exit.rows.count) {
			m.Ahead++
			exit := b.exit.number(i)
			for ; at < b.line.places.count; at++ {
				p := b.line.places.at(at)
				if p.slot >= 0 && !b.rows.at(p.slot).leftBy(exit) {
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

// Mark returns the mark of all that is released.
func (b *Buffer[T]) Mark() Mark { return b.line.mark() }

// Release drops the first n ready rows and all references to their values. It panics when
// n is negative or fewer rows are ready: to skip an unfinished row would break the order
// that the buffer is for.
func (b *Buffer[T]) Release(n int) {
	if n < 0 || n > b.exit.rows.count {
		panic(fmt.Sprintf("sequencer: release of %d rows where %d are ready", n, b.exit.rows.count))
	}
	for range n {
		s := b.exit.pop()
		row := b.rows.at(s)
		b.line.finish(row.Seq)
		b.room.release(row.Bytes)
		b.rows.free(s)
	}
	b.line.advance()
}

// Finished reports whether a row is finished: it is at or below the low-water mark,
// released, known, or dropped.
func (b *Buffer[T]) Finished(seq uint64) bool { return b.line.isFinished(seq) }

// WaitsFor returns the row that a row waits for: the first row of its key that is not
// complete, if that one comes before it.
func (b *Buffer[T]) WaitsFor(seq uint64) (before uint64, ok bool) {
	s := b.slotOf(seq)
	if s < 0 || b.rows.at(s).queue == none {
		return 0, false
	}
	before = b.rows.at(b.keys.at(b.rows.at(s).queue).first).Seq
	return before, before != seq
}

// First returns the row of a key that the others of the key wait for, and whether complete
// rows wait for it. ok is false where there is no such row, and for a key that is [Key.Own].
func (b *Buffer[T]) First(key Key) (seq uint64, waits, ok bool) {
	number, ok := b.keys.find(key)
	if !ok {
		return 0, false, false
	}
	q := b.keys.at(number)
	return b.rows.at(q.first).Seq, q.complete > 0, true
}

// Waiting returns how many keys have complete rows that wait for an earlier one.
func (b *Buffer[T]) Waiting() int { return b.keys.waiting }

// WaitedFor returns the oldest row that complete rows of its key wait for, and the key.
// It takes time for each key that has rows.
func (b *Buffer[T]) WaitedFor() (seq uint64, key Key, ok bool) {
	for i := range b.keys.items {
		q := &b.keys.items[i]
		if q.complete == 0 {
			continue
		}
		if first := b.rows.at(q.first).Seq; !ok || first < seq {
			seq, key, ok = first, q.key, true
		}
	}
	return seq, key, ok
}

// Len returns how many rows are held: opened, and neither away nor released.
func (b *Buffer[T]) Len() int { return b.room.held }

// Completed returns how many of the rows held have their value. The others, Len less
// Completed, wait for it.
func (b *Buffer[T]) Completed() int { return b.room.completed }

// Bytes returns the weight of the rows held.
func (b *Buffer[T]) Bytes() int64 { return b.room.bytes }

// WaitingBytes returns the weight of the complete rows that wait for others of their
// keys.
func (b *Buffer[T]) WaitingBytes() int64 { return b.room.waitingBytes }

// Head returns the oldest row that is not finished. It is held or away. ok is false when
// there is none.
func (b *Buffer[T]) Head() (seq uint64, ok bool) {
	if b.line.places.count == 0 {
		return 0, false
	}
	return b.line.places.at(0).seq, true
}

// slotOf returns the slot of a row that is held or away. It is negative if the row is
// neither.
func (b *Buffer[T]) slotOf(seq uint64) int32 {
	if i, ok := b.line.find(seq); ok {
		return b.line.places.at(i).slot
	}
	return none
}

// mustWeigh panics on a negative weight, which can only be the caller's arithmetic gone
// wrong.
func mustWeigh(bytes int) {
	if bytes < 0 {
		panic(fmt.Sprintf("sequencer: weight of %d bytes", bytes))
	}
}
