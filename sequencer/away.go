package sequencer

import "fmt"

// A row is away while its owner keeps nothing of it but a small note: the row keeps its
// place in the order and among the rows of its key, and its weight does not count. There
// are two ways to go away.
//
// A row that is held is parked, see [Buffer.Park]: its owner knows that its value will
// take long. A row that comes while its key has its share of the buffer is set aside, see
// [Buffer.SetAside]: it has never been held.
//
// A row that is away comes back in two steps. The first one gives it its room and says
// that it must be fetched: [Buffer.Recall] for a parked row that its owner wants,
// [Buffer.Next] for one whose turn is near. The second one is [Buffer.Return], or
// [Buffer.Drop] if the row no longer exists.

const (
	// returningMost bounds the rows of one key that come back at once to a shared buffer.
	returningMost = 16
	// nextLooks bounds the keys that one call of Next looks at.
	nextLooks = 16
)

// Park parks a row that is held and not complete. [Buffer.Away] returns the note. With
// near the row comes back when its turn is near, because it has been answered. Without
// near its owner recalls it. Park returns [ErrNotOpen], [ErrCompleted], or [ErrFull] where
// [Limits.Parked] rows are parked.
func (b *Buffer[T]) Park(seq uint64, note T, near bool) error {
	s, err := b.findOpen("park", seq)
	if err != nil {
		return err
	}
	if b.parked >= b.limits.Parked {
		return ErrFull
	}
	row := b.rows.at(s)
	row.Value, row.state = note, parked
	b.parked++
	b.away++
	b.room.leave(row.Bytes)
	q := b.keys.at(row.queue)
	if q.look == none || row.Seq < b.rows.at(q.look).Seq {
		q.look = s
	}
	if near {
		row.state = due
		b.list(row.queue)
	}
	return nil
}

// SetAside enters a row without holding it, see [Buffer.Outside]. It comes back when its
// turn is near, after the rows of its key that were set aside before it. Like every row
// above the low-water mark it counts in the span.
//
// It returns [ErrOutOfOrder] and [ErrFinished] as [Buffer.Open] does, and [ErrFull] at
// the end of the span.
func (b *Buffer[T]) SetAside(seq uint64, key Key, bytes int, note T) error {
	if err := b.mayEnter("set aside", seq, bytes); err != nil {
		return err
	}
	if b.line.isFull() {
		return ErrFull
	}
	number, ok := b.keys.find(key)
	if !ok {
		number = b.keys.add(key)
	}
	s := b.enter(seq, number, bytes)
	row, q := b.rows.at(s), b.keys.at(number)
	row.state, row.fresh, row.Value = due, true, note
	b.aside++
	b.away++
	if q.aside == none {
		q.aside = s
	}
	if q.fresh == none {
		q.fresh = s
	}
	b.list(number)
	return nil
}

// Away returns the note of a row that is away, to be changed in place, and whether the
// row was set aside. The note is nil where the row is not away. It is the buffer's own,
// and valid until the next Open, SetAside, Return or Drop.
func (b *Buffer[T]) Away(seq uint64) (note *T, aside bool) {
	s := b.slotOf(seq)
	if s < 0 || !b.rows.at(s).state.isAway() {
		return nil, false
	}
	return &b.rows.at(s).Value, b.rows.at(s).fresh
}

// Due reports whether a parked row comes back by itself when its turn is near, because it
// has been answered, and is not on its way yet.
func (b *Buffer[T]) Due(seq uint64) bool {
	s := b.slotOf(seq)
	return s >= 0 && b.rows.at(s).isParked() && b.rows.at(s).state == due
}

// Recall lets a parked row come back that its owner wants. ok is false while there is no
// room for it, and where no such row is parked.
func (b *Buffer[T]) Recall(seq uint64) (ok bool) {
	s := b.slotOf(seq)
	if s < 0 || !b.rows.at(s).isParked() || !b.mayReturn(s) {
		return false
	}
	b.comeBack(s)
	return true
}

// Next returns a row that comes back because its turn is near, and gives it its room.
// Keys take turns. Of one key the rows come in stream order: a parked row once every row
// before it is held or comes back, a row set aside once the rows set aside before it are
// on their way. The last row may exceed [Limits.Bytes], as otherwise a heavy row could
// wait for ever.
//
// ok is false where there is none at the moment. A call looks at a few keys, so the next
// one may find some.
func (b *Buffer[T]) Next() (seq uint64, ok bool) {
	if b.keys.turns.count == 0 {
		return 0, false
	}
	// The oldest row of all needs no room, and does not wait for the turn of its key.
	if b.line.places.count > 0 {
		if s := b.line.places.at(0).slot; b.rows.at(s).state == due {
			b.comeBack(s)
			return b.rows.at(s).Seq, true
		}
	}
	for range min(b.keys.turns.count, nextLooks) {
		number := b.keys.turns.pop()
		s := b.nextOf(b.keys.at(number))
		b.keys.unlist(number)
		b.list(number)
		if s != none && b.mayReturn(s) {
			b.comeBack(s)
			return b.rows.at(s).Seq, true
		}
	}
	return 0, false
}

// nextOf returns the row of a key that comes back next, or none.
func (b *Buffer[T]) nextOf(q *queue) int32 {
	if b.limits.Shared && q.returning >= returningMost {
		return none
	}
	for q.look != none {
		row := b.rows.at(q.look)
		if row.state == due {
			return q.look
		}
		if row.state == parked {
			break
		}
		q.look = row.next
	}
	return q.fresh
}

// list has Next look at a key, if one of its rows may come back by the rules of the key.
// Whether there is room shows only then.
func (b *Buffer[T]) list(number int32) {
	if q := b.keys.at(number); !q.listed && b.nextOf(q) != none {
		b.keys.list(number)
	}
}

// comeBack gives a row its room. Rows behind it may come back now, too.
func (b *Buffer[T]) comeBack(s int32) {
	row := b.rows.at(s)
	q := b.keys.at(row.queue)
	if row.fresh {
		q.fresh = row.next
	} else {
		b.parked--
	}
	row.state = returning
	q.returning++
	b.room.comeBack(row.Bytes)
	b.list(row.queue)
}

// Return opens a row that has come back, and returns its submit index. Rows of one key
// that were set aside return in stream order: [ErrOutOfOrder] is returned for one before
// its turn. next is the row whose turn it is now, or 0 if none is coming back.
func (b *Buffer[T]) Return(seq uint64) (submitIndex, next uint64, err error) {
	s, err := b.leaveAway(seq)
	if err != nil {
		return 0, 0, err
	}
	row := b.rows.at(s)
	if !row.fresh {
		row.state = open
		b.room.hold(row.Bytes)
		return row.SubmitIndex, 0, nil
	}
	b.hold(s)
	next = b.leaveAside(s)
	return row.SubmitIndex, next, nil
}

// Drop forgets a row that was coming back and no longer exists: no row waits for it. It
// returns the row's key, and next and errors as [Buffer.Return] does.
func (b *Buffer[T]) Drop(seq uint64) (key Key, next uint64, err error) {
	s, err := b.leaveAway(seq)
	if err != nil {
		return Key{}, 0, err
	}
	row := b.rows.at(s)
	number := row.queue
	row.state = dropped
	if row.fresh {
		next = b.leaveAside(s)
	}
	key = b.keys.at(number).key
	b.line.drop(seq)
	b.moveUp(number)
	return key, next, nil
}

// leaveAway ends the way back of a row.
func (b *Buffer[T]) leaveAway(seq uint64) (s int32, err error) {
	s = b.slotOf(seq)
	if s < 0 || b.rows.at(s).state != returning {
		return 0, fmt.Errorf("row seq %d is not coming back: %w", seq, ErrNotOpen)
	}
	row := b.rows.at(s)
	q := b.keys.at(row.queue)
	if row.fresh && q.aside != s {
		return 0, fmt.Errorf("row seq %d comes back before an earlier one of its key: %w", seq, ErrOutOfOrder)
	}
	q.returning--
	b.away--
	b.room.arrive(row.Bytes)
	b.list(row.queue)
	return s, nil
}

// leaveAside notes that the first row set aside of its key has come back or is dropped.
// It returns the next one, if that is coming back.
func (b *Buffer[T]) leaveAside(s int32) (next uint64) {
	row := b.rows.at(s)
	q := b.keys.at(row.queue)
	row.fresh = false
	b.aside--
	if q.aside = row.next; q.aside == none {
		return 0
	}
	if row := b.rows.at(q.aside); row.state == returning {
		return row.Seq
	}
	return 0
}

// AwayLen returns how many rows are away, including those that are coming back.
func (b *Buffer[T]) AwayLen() int { return b.away }

// Parked returns how many rows are parked and not coming back.
func (b *Buffer[T]) Parked() int { return b.parked }

// Aside returns how many rows are set aside, including those that are coming back.
func (b *Buffer[T]) Aside() int { return b.aside }

// Returning returns how many rows are coming back.
func (b *Buffer[T]) Returning() int { return b.room.returning }
