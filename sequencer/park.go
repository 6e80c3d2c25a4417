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

// Park parks a row that is held and not complete. done says that its value is known: [Buffer.Readmit] brings it back when
// its turn is near. It returns [ErrNotOpen], [ErrCompleted], or [ErrFull] where too many rows are parked.
func (b *Buffer[T]) Park(seq uint64, done bool) error {
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
	e.park = parkedAs(done)
	b.parked++
	b.bytes -= int64(e.Bytes)
	b.readmitted = min(b.readmitted, i)
	return nil
}

// Unpark takes a parked row back, whether there is room or not. It returns [ErrNotOpen] where no such row is parked.
func (b *Buffer[T]) Unpark(seq uint64) (submitIndex uint64, err error) {
	i, ok := b.find(seq)
	if !ok || b.at(i).park == held {
		return 0, fmt.Errorf("unpark row seq %d: %w", seq, ErrNotOpen)
	}
	b.unpark(b.at(i))
	return b.at(i).SubmitIndex, nil
}

func (b *Buffer[T]) unpark(e *Entry[T]) {
	e.park = held
	b.parked--
	b.bytes += int64(e.Bytes)
}

// Readmit takes back the next parked row that is done and has none before it that is not: every row before it is held.
// With room false it does so only for the row that all others wait for. ok is false where there is none.
func (b *Buffer[T]) Readmit(room bool) (seq uint64, ok bool) {
	for ; b.readmitted < b.count; b.readmitted++ {
		e := b.at(b.readmitted)
		if e.park == held {
			continue
		}
		if e.park != answered || !room && b.readmitted != b.ready {
			return 0, false
		}
		b.unpark(e)
		return e.Seq, true
	}
	return 0, false
}

// Parked returns the rows that are parked.
func (b *Buffer[T]) Parked() int { return b.parked }

func parkedAs(done bool) park {
	if done {
		return answered
	}
	return parked
}

// Park is [Buffer.Park].
func (b *Keyed[T]) Park(seq uint64, done bool) error {
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
	row.park = parkedAs(done)
	b.parked++
	b.held--
	b.bytes -= int64(row.Bytes)
	b.readmitNext(s)
	return nil
}

// Unpark is [Buffer.Unpark].
func (b *Keyed[T]) Unpark(seq uint64) (submitIndex uint64, err error) {
	s := b.slotOf(seq)
	if s < 0 || b.slots[s].park == held {
		return 0, fmt.Errorf("unpark row seq %d: %w", seq, ErrNotOpen)
	}
	b.unpark(s)
	return b.slots[s].SubmitIndex, nil
}

func (b *Keyed[T]) unpark(s int32) {
	row := &b.slots[s]
	row.park = held
	b.parked--
	b.held++
	b.bytes += int64(row.Bytes)
}

// Readmit is [Buffer.Readmit] for the rows that wait for no other of their keys. With room false there is one only where
// all rows held are complete and wait: nothing else would make room.
func (b *Keyed[T]) Readmit(room bool) (seq uint64, ok bool) {
	for len(b.readmits) > 0 && (room || b.completed == b.held && b.ready.count == 0) {
		seq = b.readmits[0]
		b.readmits = b.readmits[1:]
		if s := b.slotOf(seq); s >= 0 && b.slots[s].park == answered {
			b.unpark(s)
			return seq, true
		}
	}
	return 0, false
}

// readmitNext has Readmit take back a row that waits for no other, if it is parked and done. Some are there twice.
func (b *Keyed[T]) readmitNext(s int32) {
	row := &b.slots[s]
	if row.park == answered && (row.queue == none || b.queues[row.queue].first == s) {
		b.readmits = append(b.readmits, row.Seq)
	}
}

// Parked returns the rows that are parked.
func (b *Keyed[T]) Parked() int { return b.parked }
