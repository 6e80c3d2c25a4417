package sequencer

import "fmt"

// asides are the rows that are set aside, in slots of their own.
type asides struct {
	slots []aside
	spare []int32
	count int
	// recalled of them are on their way back, with so many bytes.
	recalled      int
	recalledBytes int64
	// keys are the queues with rows to recall, each once; the first is looked at next.
	keys ring[int32]
}

// aside is a row of which nothing is held but its place in its key, its weight, and a note of the caller.
type aside struct {
	seq   uint64
	note  string
	bytes int
	queue int32 // of its key
	next  int32 // of the same key
}

// asideQueue holds the rows of one key that are set aside, in stream order.
type asideQueue struct {
	first, last int32
	next        int32 // the first that is not recalled
	recalled    int   // those before it
	listed      bool  // in asides.keys
}

const (
	// recalledMost bounds the rows of one key that are on their way back at once, recallLooks the keys that one call of
	// Recall looks at.
	recalledMost = 16
	recallLooks  = 16
)

// placeOf is what [place] has for a row that is set aside, and back.
func placeOf(number int32) int32 { return gone - 1 - number }

// Reserve keeps room, less than the buffer's [Limits], for keys that don't wait: [Keyed.Room] and [Keyed.RoomBytes] have
// it only while complete rows that wait for others of their keys take half of the buffer. It is none at first.
func (b *Keyed[T]) Reserve(room Limits) {
	if room.Rows < 0 || room.Rows >= b.limits.Rows || room.Bytes < 0 || room.Bytes >= b.limits.Bytes {
		panic(fmt.Sprintf("sequencer: reserve of %+v in a window of %+v", room, b.limits))
	}
	b.reserve = room
}

// crowded reports whether half of the buffer, in rows or bytes, is complete rows that wait for others of their keys.
func (b *Keyed[T]) crowded() bool {
	return 2*(b.completed-b.ready.count) >= b.limits.Rows || 2*b.waitingBytes >= b.limits.Bytes
}

// Outside reports whether a row of a key must be set aside: earlier ones are, or complete rows that wait take half of the
// buffer and the key has its share of it. So keys that wait, however many rows they have, leave room for the others. A
// row is set aside as well where there is no room, as when recalled rows have taken it since the row was asked for.
func (b *Keyed[T]) Outside(key string, bytes int) bool {
	if b.noRoom(bytes) {
		return true
	}
	number, ok := b.byKey[key]
	if !ok {
		return false
	}
	q := &b.queues[number]
	return q.aside.first != none || b.crowded() && (q.complete > 0 || b.inReserve())
}

// inReserve reports whether no more room is left than what is kept for keys without a row.
func (b *Keyed[T]) inReserve() bool {
	return b.taken() >= b.limits.Rows-b.reserve.Rows || b.reserve.Bytes > 0 && b.takenBytes() >= b.limits.Bytes-b.reserve.Bytes
}

// SetAside enters a row without holding it, see [Keyed.Outside]. Its weight counts from [Keyed.Recall] on, and the note
// is returned by [Keyed.Reopen]. Like every row above the low-water mark it counts in the span; it takes 64 bytes and the
// note, and its key 64 where no other row of the key is there.
func (b *Keyed[T]) SetAside(seq uint64, key string, bytes int, note string) error {
	mustWeigh(bytes)
	switch {
	case seq <= b.last():
		return fmt.Errorf("set aside row seq %d after %d: %w", seq, b.last(), ErrOutOfOrder)
	case b.Known(seq):
		return fmt.Errorf("set aside row seq %d: %w", seq, ErrFinished)
	case b.places.count >= b.span:
		return ErrFull
	}
	b.Pass(seq)
	a := &b.asides
	var n int32
	if len(a.spare) > 0 {
		n = a.spare[len(a.spare)-1]
		a.spare = a.spare[:len(a.spare)-1]
	} else {
		n = int32(len(a.slots)) //nolint:gosec // at most the span
		a.slots = append(a.slots, aside{})
	}
	number := b.queueOf(key)
	a.slots[n] = aside{seq: seq, note: note, bytes: bytes, queue: number, next: none}
	a.count++
	q := &b.queues[number].aside
	if q.first == none {
		q.first = n
	} else {
		a.slots[q.last].next = n
	}
	q.last = n
	if q.next == none {
		q.next = n
	}
	b.list(number)
	b.places.push(place{seq: seq, slot: placeOf(n)}, b.span)
	return nil
}

// list has Recall look at a key that has rows to recall.
func (b *Keyed[T]) list(number int32) {
	q := &b.queues[number].aside
	if !q.listed && q.next != none && q.recalled < recalledMost {
		q.listed = true
		b.asides.keys.push(number, b.span)
	}
}

// Aside returns how many rows are set aside.
func (b *Keyed[T]) Aside() int { return b.asides.count }

// Recall returns a row that is set aside and should come back: the caller fetches it and calls [Keyed.Reopen], or
// [Keyed.Drop] if it no longer exists. Keys take turns; of one key some rows may be on their way at once. Those of a key
// of which complete rows wait stay aside while such rows take half of the buffer. From now on the row has its room; the
// last one may exceed [Limits.Bytes], as otherwise a heavy row could wait for ever. ok is false where there is none at
// the moment; a call looks at a few keys, so the next one may find some.
func (b *Keyed[T]) Recall() (seq uint64, ok bool) {
	a := &b.asides
	if b.taken() >= b.limits.Rows || b.takenBytes() >= b.limits.Bytes {
		return 0, false
	}
	crowded, reserve := b.crowded(), b.inReserve()
	for range min(a.keys.count, recallLooks) {
		number := a.keys.pop()
		q := &b.queues[number]
		if crowded && q.complete > 0 || reserve && (q.first != none || q.aside.recalled > 0) {
			a.keys.push(number, b.span)
			continue
		}
		n := q.aside.next
		q.aside.next = a.slots[n].next
		q.aside.recalled++
		q.aside.listed = false
		a.recalled++
		a.recalledBytes += int64(a.slots[n].bytes)
		b.list(number)
		return a.slots[n].seq, true
	}
	return 0, false
}

// Reopen takes a row that was recalled as [Keyed.Open] does, and returns its submit index and its note. Of one key rows
// come back in stream order, [ErrOutOfOrder] is returned for one before its turn: next is the row that is next, 0 if none
// is recalled.
func (b *Keyed[T]) Reopen(seq uint64) (submitIndex uint64, note string, next uint64, err error) {
	number, i, err := b.returning(seq)
	if err != nil {
		return 0, "", 0, err
	}
	row := b.asides.slots[b.queues[number].aside.first]
	s := b.newSlot(seq, row.bytes, b.passed+uint64(i)) //nolint:gosec // an index
	b.places.at(i).slot = s
	b.enqueue(s, number)
	next = b.leaveAside(number)
	return b.slots[s].SubmitIndex, row.note, next, nil
}

// Drop forgets a row that was recalled and no longer exists: none waits for it. next is as in Reopen.
func (b *Keyed[T]) Drop(seq uint64) (next uint64, err error) {
	number, i, err := b.returning(seq)
	if err != nil {
		return 0, err
	}
	b.places.at(i).slot = gone
	next = b.leaveAside(number)
	b.dropEmpty(number)
	b.advance()
	return next, nil
}

// returning finds the key and the place of a row that comes back.
func (b *Keyed[T]) returning(seq uint64) (number int32, i int, err error) {
	i, ok := b.find(seq)
	if !ok || b.places.at(i).slot >= gone {
		return 0, 0, fmt.Errorf("row seq %d is not set aside: %w", seq, ErrNotOpen)
	}
	n := placeOf(b.places.at(i).slot)
	number = b.asides.slots[n].queue
	if q := &b.queues[number].aside; q.recalled == 0 || q.first != n {
		return 0, 0, fmt.Errorf("row seq %d is not recalled, or one of its key comes before it: %w", seq, ErrOutOfOrder)
	}
	return number, i, nil
}

// leaveAside takes the first row of a key out of those that are set aside.
func (b *Keyed[T]) leaveAside(number int32) (next uint64) {
	a, q := &b.asides, &b.queues[number].aside
	n := q.first
	q.first = a.slots[n].next
	q.recalled--
	a.recalled--
	a.recalledBytes -= int64(a.slots[n].bytes)
	a.slots[n] = aside{}
	a.spare = append(a.spare, n)
	a.count--
	if q.first == none {
		q.last = none
		return 0
	}
	b.list(number)
	if q.recalled == 0 {
		return 0
	}
	return a.slots[q.first].seq
}
