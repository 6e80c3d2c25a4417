package sequencer

// Where many keys share a buffer, one whose rows wait must leave room for the others. So
// two parts of the buffer are kept for them, in rows and in bytes:
//
//   - Complete rows that wait may take half of it. Beyond that it is crowded, and further rows of
//     their keys are set aside.
//   - An eighth is in reserve for keys without a row. It may be taken only while the buffer is
//     crowded: before that, it would just be left empty.
//
// For example, with 800 rows: 700 of any key may be held at first. When 400 of them are
// complete and wait, their keys get no more room. The other keys get the rest of the 700,
// and keys without a row may take the last 100, too.
const (
	crowdedPart = 2
	reservePart = 8
)

// Room returns how many more rows should be taken, their bytes aside.
func (b *Buffer[T]) Room() int {
	rows := b.limits.Rows
	if !b.crowded() {
		rows -= b.reserveRows()
	}
	return max(0, min(rows-b.taken(), b.limits.Span-b.line.places.count))
}

// RoomBytes returns how many more bytes should be taken, as [Buffer.Room] does for rows.
func (b *Buffer[T]) RoomBytes() int64 {
	bytes := b.limits.Bytes
	if !b.crowded() {
		bytes -= b.reserveBytes()
	}
	return max(0, bytes-b.takenBytes())
}

// full reports whether [Buffer.Open] would refuse a row of this weight for lack of room.
func (b *Buffer[T]) full(bytes int) bool {
	return b.line.places.count >= b.limits.Span || b.noRoom(bytes)
}

// noRoom reports whether the row would not fit among the rows that have room.
func (b *Buffer[T]) noRoom(bytes int) bool {
	return b.taken() >= b.limits.Rows || b.taken() > 0 && int64(bytes) > b.limits.Bytes-b.takenBytes()
}

// taken is how many rows have room: those held and those coming back.
func (b *Buffer[T]) taken() int { return b.held + b.returning }

// takenBytes is the weight that counts against the bytes of the buffer. The weight of a
// value shows late: where those that wait have come to more than half of the bytes of a
// shared buffer, they leave the other half to other keys all the same.
func (b *Buffer[T]) takenBytes() int64 {
	bytes := b.bytes + b.returningBytes
	if b.limits.Shared {
		bytes -= max(0, b.waitingBytes-b.limits.Bytes/crowdedPart)
	}
	return bytes
}

// crowded reports whether complete rows that wait take half of a shared buffer, in rows
// or bytes.
func (b *Buffer[T]) crowded() bool {
	waiting := b.completed - b.ready.count
	return b.limits.Shared &&
		(crowdedPart*waiting >= b.limits.Rows || crowdedPart*b.waitingBytes >= b.limits.Bytes)
}

// inReserve reports whether no more room is left than the reserve, which only a shared
// buffer has.
func (b *Buffer[T]) inReserve() bool {
	rows, bytes := b.reserveRows(), b.reserveBytes()
	return b.taken() >= b.limits.Rows-rows || bytes > 0 && b.takenBytes() >= b.limits.Bytes-bytes
}

func (b *Buffer[T]) reserveRows() int {
	if !b.limits.Shared {
		return 0
	}
	return b.limits.Rows / reservePart
}

func (b *Buffer[T]) reserveBytes() int64 {
	if !b.limits.Shared {
		return 0
	}
	return b.limits.Bytes / reservePart
}

// Outside reports whether a row of a key must be set aside: earlier ones are, or the
// buffer is crowded and the key has its share of it. A row is set aside as well where
// there is no room, as when rows that come back have taken it since the row was asked
// for. It is never so where the buffer is not [Limits.Shared].
func (b *Buffer[T]) Outside(key Key, bytes int) bool {
	switch {
	case !b.limits.Shared:
		return false
	case b.noRoom(bytes):
		return true
	}
	number, ok := b.keys.find(key)
	if !ok {
		return false
	}
	q := b.keys.at(number)
	return q.aside != none || b.crowded() && (q.complete > 0 || b.inReserve())
}

// mayReturn reports whether a row that is away has room to come back.
//
// Where there is none, a row may come back that everything waits for: the oldest row of
// all; or the first row of a key, once all rows held are complete and wait, and no row is
// coming back already. Else a full window could wait for ever for a row that has no room.
// It exceeds the limits by two rows at most.
//
// Where many keys share the buffer, a row that waits for others of its key takes no room
// from keys that don't wait, by the rules of [Buffer.Outside].
func (b *Buffer[T]) mayReturn(s int32) bool {
	row := b.rows.at(s)
	q := b.keys.at(row.queue)
	if b.taken() >= b.limits.Rows || b.takenBytes() >= b.limits.Bytes {
		stuck := b.completed == b.held && b.ready.count == 0 && b.returning == 0
		return b.line.places.at(0).slot == s || stuck && q.first == s
	}
	switch {
	case q.first == s:
		return true
	case b.crowded() && q.complete > 0:
		return false
	}
	return !b.inReserve()
}
