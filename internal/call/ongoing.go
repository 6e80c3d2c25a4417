package call

import (
	"slices"
	"sync"
	"time"
)

// NoPartition is the partition of a call that is not made for a row.
const NoPartition = -1

// Ongoing is a call in flight. The audit holds a call only when it has ended.
type Ongoing struct {
	Partition int    // of the row, or [NoPartition] for the call of a batched request
	Sequence  uint64 // of the row; 0 where there is none
	Item      *int   // the element of the row; nil means that the call is for the whole row
	Attempt   int    // at the row or its element, from 1
	Provider  string
	Model     string
	Since     time.Time
}

// ongoing are the calls in flight: at most as many as the pool has slots. It is safe for
// concurrent use.
type ongoing struct {
	mu    sync.Mutex
	calls []Ongoing      // one whose Since is zero has ended: its place is free
	free  []int          // indexes of these
	begun map[int]uint64 // calls so far, by partition
}

// Began notes a call that begins now. What it returns must be passed to [Caller.Ended]
// when the call's exchange has ended.
func (c *Caller) Began(o Ongoing) (place int) {
	o.Since = time.Now()
	g := &c.ongoing
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun == nil {
		g.begun = make(map[int]uint64)
	}
	g.begun[o.Partition]++
	last := len(g.free) - 1
	if last < 0 {
		g.calls = append(g.calls, o)
		return len(g.calls) - 1
	}
	place, g.free = g.free[last], g.free[:last]
	g.calls[place] = o
	return place
}

// Ended notes that the exchange of a call has ended.
func (c *Caller) Ended(place int) {
	g := &c.ongoing
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[place] = Ongoing{}
	g.free = append(g.free, place)
}

// InFlight returns the calls in flight, the oldest first.
func (c *Caller) InFlight() []Ongoing {
	g := &c.ongoing
	g.mu.Lock()
	calls := make([]Ongoing, 0, len(g.calls)-len(g.free))
	for _, o := range g.calls {
		if !o.Since.IsZero() {
			calls = append(calls, o)
		}
	}
	g.mu.Unlock()
	slices.SortFunc(calls, func(a, b Ongoing) int { return a.Since.Compare(b.Since) })
	return calls
}

// Begun returns how many calls have begun for the rows of a partition.
func (c *Caller) Begun(partition int) uint64 {
	c.ongoing.mu.Lock()
	defer c.ongoing.mu.Unlock()
	return c.ongoing.begun[partition]
}
