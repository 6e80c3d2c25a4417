package sequencer

import "fmt"

// park says whether a row is held or parked. A parked row keeps its place in the order and its weight is not counted:
// its owner holds nothing of it.
type park uint8

const (
	held     park = iota
	parked        // until it is answered
	answered      // until its turn is near
)

// Park parks a row that is held and not complete. What its owner must know to find it again is kept as its value. done
// says that it has been answered: [Buffer.Readmit] brings it back when its turn is near. It returns [ErrNotOpen],
// [ErrCompleted], or [ErrFull] where too many rows are parked.
func (b *Buffer[T]) Park(seq uint64, v T, done bool) error {
	i, ok := b.find(seq)
	if !ok || b.at(i).park != held {
		return fmt.Errorf("park row seq %d: %w", seq, ErrNotOpen)
	}
	e := b.at(i)
	switch {
	case e.complete:
		return fmt.Errorf("park row seq %d: %w", seq, ErrCompleted)
	case b.parked >= b.limits.Parked:
		return ErrFull
	}
	e.Value, e.park = v, parkedAs(done)
	b.parked++
	b.bytes -= int64(e.Bytes)
	b.readmitted = min(b.readmitted, i)
	return nil
}

// Parked returns what is kept of a parked row, to be changed in place; nil: no such row is parked.
func (b *Buffer[T]) Parked(seq uint64) *T {
	if i, ok := b.find(seq); ok && b.at(i).park != held {
		return &b.at(i).Value
	}
	return nil
}

// Unpark takes a parked row back, whether there is room or not; ok is false where no such row is parked. The entry is as
// that of [Buffer.Ready], its value what was kept.
func (b *Buffer[T]) Unpark(seq uint64) (e *Entry[T], ok bool) {
	i, ok := b.find(seq)
	if !ok || b.at(i).park == held {
		return nil, false
	}
	return b.unpark(b.at(i)), true
}

func (b *Buffer[T]) unpark(e *Entry[T]) *Entry[T] {
	e.park = held
	b.parked--
	b.bytes += int64(e.Bytes)
	return e
}

// Readmit takes back the next parked row that is done and has none before it that is not: every row before it is held.
// With room false it does so only for the row that all others wait for. ok is false where there is none.
func (b *Buffer[T]) Readmit(room bool) (e *Entry[T], ok bool) {
	for ; b.readmitted < b.count; b.readmitted++ {
		e := b.at(b.readmitted)
		if e.park == held {
			continue
		}
		if e.park != answered || !room && b.readmitted != b.ready {
			return nil, false
		}
		return b.unpark(e), true
	}
	return nil, false
}

// ParkedLen returns how many rows are parked.
func (b *Buffer[T]) ParkedLen() int { return b.parked }

func parkedAs(done bool) park {
	if done {
		return answered
	}
	return parked
}

// Park is [Buffer.Park].
func (b *Keyed[T]) Park(seq uint64, v T, done bool) error {
	s := b.slotOf(seq)
	if s < 0 || b.slots[s].park != held {
		return fmt.Errorf("park row seq %d: %w", seq, ErrNotOpen)
	}
	row := &b.slots[s]
	switch {
	case row.complete:
		return fmt.Errorf("park row seq %d: %w", seq, ErrCompleted)
	case b.parked >= b.limits.Parked:
		return ErrFull
	}
	row.Value, row.park = v, parkedAs(done)
	b.parked++
	b.held--
	b.bytes -= int64(row.Bytes)
	b.readmitNext(s)
	return nil
}

// Parked is [Buffer.Parked].
func (b *Keyed[T]) Parked(seq uint64) *T {
	if s := b.slotOf(seq); s >= 0 && b.slots[s].park != held {
		return &b.slots[s].Value
	}
	return nil
}

// Unpark is [Buffer.Unpark].
func (b *Keyed[T]) Unpark(seq uint64) (e *Entry[T], ok bool) {
	s := b.slotOf(seq)
	if s < 0 || b.slots[s].park == held {
		return nil, false
	}
	return b.unpark(s), true
}

func (b *Keyed[T]) unpark(s int32) *Entry[T] {
	row := &b.slots[s]
	row.park = held
	b.parked--
	b.held++
	b.bytes += int64(row.Bytes)
	return &row.Entry
}

// Readmit is [Buffer.Readmit] for the rows that wait for no other of their keys. With room false there is one only where
// all rows held are complete and wait: nothing else would make room.
func (b *Keyed[T]) Readmit(room bool) (e *Entry[T], ok bool) {
	for len(b.readmits) > 0 && (room || b.completed == b.held && b.ready.count == 0) {
		seq := b.readmits[0]
		b.readmits = b.readmits[1:]
		if s := b.slotOf(seq); s >= 0 && b.slots[s].park == answered {
			return b.unpark(s), true
		}
	}
	return nil, false
}

// readmitNext has Readmit take back a row that waits for no other, if it is parked and done. Some are there twice.
func (b *Keyed[T]) readmitNext(s int32) {
	row := &b.slots[s]
	if row.park == answered && (row.queue == none || b.queues[row.queue].first == s) {
		b.readmits = append(b.readmits, row.Seq)
	}
}

// ParkedLen returns how many rows are parked.
func (b *Keyed[T]) ParkedLen() int { return b.parked }
