package sequencer

// exit holds the rows that are ready, in the order in which they leave. All releases are
// numbered, and a row has the number of its release as soon as it is ready. From that
// [Buffer.Marks] finds which rows have left after a given release.
type exit struct {
	rows     ring[int32] // their slots
	released uint32      // rows that have left, modulo 2^32
}

// push adds a row and returns the number of its release. The limit is the one of
// [ring.push].
func (x *exit) push(s int32, limit int) uint32 {
	x.rows.push(s, limit)
	return x.number(x.rows.count - 1)
}

// number returns the number of the release of the i-th row, counted from 0.
func (x *exit) number(i int) uint32 {
	return x.released + uint32(i) + 1 //nolint:gosec // modulo 2^32
}

// pop takes out the row that leaves.
func (x *exit) pop() (s int32) {
	x.released++
	return x.rows.pop()
}
