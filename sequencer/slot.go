package sequencer

// state is how far a row has come. A row enters as open or due:
//
//	open ──Complete──> complete ──moveUp──> ready ──Release──> gone
//	open ──Park──> parked or due
//	parked ──Recall──> returning <──Next── due
//	due, if it was parked ──Recall──> returning
//	returning ──Return──> open
//	returning ──Drop──> dropped
type state uint8

const (
	unused    state = iota // the slot has no row
	open                   // it is held, and its value is not known
	complete               // it is held with its value, and waits for an earlier row of its key
	ready                  // it may leave
	parked                 // it is away until its owner recalls it
	due                    // it is away, and comes back when its turn is near
	returning              // it is away, and is being fetched
	dropped                // it no longer exists; its slot is free once it is the first of its queue
)

func (s state) isAway() bool { return s >= parked }

// leaves reports whether a row in this state leaves its queue once it is the first.
func (s state) leaves() bool { return s == complete || s == dropped }

// slot is a row that is held or away. It is in the queue of its key until it is ready.
type slot[T any] struct {
	Entry[T]
	queue int32 // number of its key's queue; none once it is ready
	next  int32 // slot of the next row in the queue
	// exit is the number of the release that a ready row leaves with, modulo 2^32.
	exit  uint32
	state state
	// fresh says that the row was set aside when it entered, and has not been opened yet.
	fresh bool
}

// isParked reports whether the row is parked and not coming back.
func (s *slot[T]) isParked() bool { return s.state == parked || s.state == due && !s.fresh }

// leftBy reports whether the row is released once the release of this number is done.
func (s *slot[T]) leftBy(exit uint32) bool {
	return s.state == ready && int32(s.exit-exit) <= 0 //nolint:gosec // a distance modulo 2^32
}

// slots holds rows at fixed numbers. Slots of rows that are gone are used again.
type slots[T any] struct {
	items []slot[T] // by number
	spare []int32   // numbers that may be used again
}

func (r *slots[T]) at(s int32) *slot[T] { return &r.items[s] }

func (r *slots[T]) add(row slot[T]) (s int32) {
	if n := len(r.spare); n > 0 {
		s, r.spare = r.spare[n-1], r.spare[:n-1]
		r.items[s] = row
		return s
	}
	r.items = append(r.items, row)
	return int32(len(r.items) - 1) //nolint:gosec // at most the span
}

// free drops a row and all that it refers to.
func (r *slots[T]) free(s int32) {
	r.items[s] = slot[T]{}
	r.spare = append(r.spare, s)
}
