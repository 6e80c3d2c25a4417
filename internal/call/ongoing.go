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
	Partition int    // of the row; [NoPartition]: the call is for a batched request
	Sequence  uint64 // of the row; 0 where there is none
	Item      *int   // the element of the row; nil means that the call is for the whole row
	Attempt   int    // at the row or its element, from 1
	Provider  string
	Model     string
	Since     time.Time
}

// ongoing are the calls in flight: at most as many as the pool has slots. Safe for
// concurrent use.
type ongoing struct {
	mu    sync.Mutex
	last  uint64 // key of the newest call
	calls map[uint64]Ongoing
	begun map[int]uint64 // calls so far, by partition
}

// Began notes a call that begins now. ended must be called when its exchange has ended.
func (c *Caller) Began(o Ongoing) (ended func()) {
	o.Since = time.Now()
	g := &c.ongoing
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls == nil {
		g.calls, g.begun = make(map[uint64]Ongoing), make(map[int]uint64)
	}
	g.last++
	key := g.last
	g.calls[key] = o
	g.begun[o.Partition]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.calls, key)
	}
}

// InFlight returns the calls in flight, the oldest first.
func (c *Caller) InFlight() []Ongoing {
	g := &c.ongoing
	g.mu.Lock()
	calls := make([]Ongoing, 0, len(g.calls))
	for _, o := range g.calls {
		calls = append(calls, o)
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
