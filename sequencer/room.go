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

// room is the account of the rows that take room in a buffer. A row takes it while it is
// held, and again as soon as it is on its way back from having been away. The limits
// decide only whether another row is taken: values may exceed the bytes, and
// [Buffer.mayReturn] says which rows may exceed the rows.
type room struct {
	limits Limits

	held      int   // rows opened, and neither away nor released
	bytes     int64 // the weight of those
	completed int   // those of them with their values

	// These count the completed rows that wait for others of their keys.
	waiting      int
	waitingBytes int64

	// These count the rows that are coming back.
	returning      int
	returningBytes int64
}

// hold takes in a row that is opened, or opened again.
func (r *room) hold(bytes int) {
	r.held++
	r.bytes += int64(bytes)
}

// grow adds to the weight of a row that is held.
func (r *room) grow(bytes int) { r.bytes += int64(bytes) }

// complete counts a row that has its value, which waits until ready is called. Before and
// after are its weights without and with the value.
func (r *room) complete(before, after int) {
	r.bytes += int64(after) - int64(before)
	r.completed++
	r.waiting++
	r.waitingBytes += int64(after)
}

// ready counts a complete row that no longer waits.
func (r *room) ready(bytes int) {
	r.waiting--
	r.waitingBytes -= int64(bytes)
}

// release ends the account of a ready row.
func (r *room) release(bytes int) {
	r.completed--
	r.leave(bytes)
}

// leave ends the account of a row that is held no longer, because it goes away.
func (r *room) leave(bytes int) {
	r.held--
	r.bytes -= int64(bytes)
}

// comeBack takes in a row that is coming back.
func (r *room) comeBack(bytes int) {
	r.returning++
	r.returningBytes += int64(bytes)
}

// arrive takes out a row that was coming back. It is held from then on, or dropped.
func (r *room) arrive(bytes int) {
	r.returning--
	r.returningBytes -= int64(bytes)
}

// rows returns how many rows take room, because they are held or coming back.
func (r *room) rows() int { return r.held + r.returning }

// weight returns what counts against the bytes of the buffer. The weight of a value shows
// late. If complete rows that wait have come to more than half of the bytes of a shared
// buffer, they count as half of them, so that other keys have the other half all the same.
func (r *room) weight() int64 {
	bytes := r.bytes + r.returningBytes
	if r.limits.Shared {
		bytes -= max(0, r.waitingBytes-r.limits.Bytes/crowdedPart)
	}
	return bytes
}

// isFull reports whether no row has room, however light it is.
func (r *room) isFull() bool { return r.rows() >= r.limits.Rows || r.weight() >= r.limits.Bytes }

// fits reports whether a row of this weight has room. The first one always has.
func (r *room) fits(bytes int) bool {
	return r.rows() < r.limits.Rows && (r.rows() == 0 || int64(bytes) <= r.limits.Bytes-r.weight())
}

// stuck reports whether no row that takes room will release it by itself: all that are
// held wait for others of their keys, and none is coming back.
func (r *room) stuck() bool { return r.waiting == r.held && r.returning == 0 }

// crowded reports whether complete rows that wait take half of a shared buffer, in rows
// or bytes.
func (r *room) crowded() bool {
	return r.limits.Shared &&
		(crowdedPart*r.waiting >= r.limits.Rows || crowdedPart*r.waitingBytes >= r.limits.Bytes)
}

// reserve returns the rows and bytes that are kept for keys without a row.
func (r *room) reserve() (rows int, bytes int64) {
	if !r.limits.Shared {
		return 0, 0
	}
	return r.limits.Rows / reservePart, r.limits.Bytes / reservePart
}

// inReserve reports whether no more room is left than the reserve, which only a shared
// buffer has.
func (r *room) inReserve() bool {
	rows, bytes := r.reserve()
	return r.rows() >= r.limits.Rows-rows || bytes > 0 && r.weight() >= r.limits.Bytes-bytes
}

// left returns how many more rows and bytes should be taken. Either may be negative.
func (r *room) left() (rows int, bytes int64) {
	rows, bytes = r.limits.Rows-r.rows(), r.limits.Bytes-r.weight()
	if !r.crowded() {
		reservedRows, reservedBytes := r.reserve()
		rows, bytes = rows-reservedRows, bytes-reservedBytes
	}
	return rows, bytes
}

// Room returns how many more rows should be taken, whatever they weigh.
func (b *Buffer[T]) Room() int {
	rows, _ := b.room.left()
	return max(0, min(rows, b.limits.Span-b.line.places.count))
}

// RoomBytes returns how many more bytes should be taken, as [Buffer.Room] does for rows.
func (b *Buffer[T]) RoomBytes() int64 {
	_, bytes := b.room.left()
	return max(0, bytes)
}

// full reports whether [Buffer.Open] would refuse a row of this weight for lack of room.
func (b *Buffer[T]) full(bytes int) bool { return b.line.isFull() || !b.room.fits(bytes) }

// Outside reports whether a row of a key must be set aside: earlier ones are, or the
// buffer is crowded and the key has its share of it. A row is set aside as well where
// there is no room, as when rows that come back have taken it since the row was asked
// for. It is never so where the buffer is not [Limits.Shared].
func (b *Buffer[T]) Outside(key Key, bytes int) bool {
	switch {
	case !b.limits.Shared:
		return false
	case !b.room.fits(bytes):
		return true
	}
	number, ok := b.keys.find(key)
	if !ok {
		return false
	}
	q := b.keys.at(number)
	return q.aside != none || b.room.crowded() && (q.complete > 0 || b.room.inReserve())
}

// mayReturn reports whether a row that is away has room to come back.
//
// A row that everything waits for may come back even without room. That is the oldest row
// of all. It is also the first row of a key, once all rows held are complete and wait, and
// no row is coming back already. Otherwise a full window could wait for ever for a row that
// has no room. The limits are exceeded by two rows at most.
//
// Where many keys share the buffer, a row that waits for others of its key takes no room
// from keys that don't wait, by the rules of [Buffer.Outside].
func (b *Buffer[T]) mayReturn(s int32) bool {
	q := b.keys.at(b.rows.at(s).queue)
	switch {
	case b.room.isFull():
		return b.line.places.at(0).slot == s || b.room.stuck() && q.first == s
	case q.first == s:
		return true
	case b.room.crowded() && q.complete > 0:
		return false
	}
	return !b.room.inReserve()
}
