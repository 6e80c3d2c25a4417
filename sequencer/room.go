package sequencer

// Room returns how many more rows should be taken, their bytes aside. See [Keyed.Reserve] for what is kept back.
func (b *Keyed[T]) Room() int {
	rows := b.limits.Rows
	if !b.crowded() {
		rows -= b.reserve.Rows
	}
	return max(0, min(rows-b.taken(), b.span-b.places.count))
}

// RoomBytes returns how many more bytes should be taken, as [Keyed.Room] does for rows.
func (b *Keyed[T]) RoomBytes() int64 {
	bytes := b.limits.Bytes
	if !b.crowded() {
		bytes -= b.reserve.Bytes
	}
	return max(0, bytes-b.takenBytes())
}

// Full reports whether [Keyed.Open] would refuse a row of this weight for lack of room.
func (b *Keyed[T]) Full(bytes int) bool {
	return b.places.count >= b.span || b.noRoom(bytes)
}

// noRoom reports whether the row would not fit among those held and those recalled, whose room is theirs already.
func (b *Keyed[T]) noRoom(bytes int) bool {
	return b.taken() >= b.limits.Rows || b.taken() > 0 && int64(bytes) > b.limits.Bytes-b.takenBytes()
}

// taken is how many rows have room: those held and those recalled.
func (b *Keyed[T]) taken() int {
	return b.held + b.asides.recalled
}

// takenBytes is what rows count against the bytes of the buffer. How heavy a value is shows late: where those that wait
// have come to more than half of the bytes, they leave the other half to others all the same.
func (b *Keyed[T]) takenBytes() int64 {
	return b.bytes + b.asides.recalledBytes - max(0, b.waitingBytes-b.limits.Bytes/2)
}
