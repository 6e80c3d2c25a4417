package pool

import "time"

// shortageGrowth is how often one more call in flight is allowed. It is allowed even
// where fewer are wanted. Otherwise a shortage that is long over would be reported until
// that many are.
const shortageGrowth = 5 * time.Second

// shortage bounds the calls in flight while this machine has no descriptor, port or
// buffer left. As many as were in flight when the shortage was met are what the machine
// can bear: no more go until some end, and one more is tried from time to time. For
// example, if the 81st connection finds no descriptor, 80 calls may be in flight, and 81
// five seconds later.
//
// With no call in flight none will release what is missing, so then the pool pauses: see
// scheduler.limitCalls. The zero value bounds nothing.
type shortage struct {
	err    error       // what the machine is short of; nil if it is short of nothing
	room   int         // most calls in flight, at least 1; 0 if it is short of nothing
	grown  time.Time   // when room last changed
	report func(error) // Config.OnShortage
}

// isOn reports whether the machine is short of something.
func (h *shortage) isOn() bool { return h.room > 0 }

// met records that a call met the shortage while so many others were in flight.
func (h *shortage) met(now time.Time, inFlight int, err error) {
	begins := !h.isOn()
	h.err, h.room, h.grown = err, max(1, inFlight), now
	if begins {
		h.report(err)
	}
}

// slots returns how many calls may be in flight in a pool of a size. The shortage is over
// once that is all of them.
func (h *shortage) slots(now time.Time, size int) int {
	if !h.isOn() {
		return size
	}
	if now.Sub(h.grown) >= shortageGrowth {
		h.room, h.grown = h.room+1, now
	}
	if h.room >= size {
		h.end()
		return size
	}
	return h.room
}

// due returns the instant from which one more call may be in flight; zero if the machine
// is short of nothing.
func (h *shortage) due() time.Time {
	if !h.isOn() {
		return time.Time{}
	}
	return h.grown.Add(shortageGrowth)
}

// end ends the shortage, if there is one.
func (h *shortage) end() {
	if !h.isOn() {
		return
	}
	h.err, h.room = nil, 0
	h.report(nil)
}
