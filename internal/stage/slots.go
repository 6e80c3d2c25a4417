package stage

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/pool"
)

// slots bound the calls in flight of several stages of a process, whose pools take turns:
// a slot that becomes free is offered to the pool that has waited longest. For example,
// with 4 slots, a stage with 1,000 rows has all four while the other has none. When the
// other gets rows its pool waits, has the next slot that becomes free, and then every
// other one.
//
// A pool whose rows are gone does not answer an offer. After [offerFor] the offer goes on
// to the next one, so nobody waits for a pool that has nothing to send. Safe for
// concurrent use.
type slots struct {
	limit int

	mu       sync.Mutex
	inFlight int
	waiting  []*slotsGate // the first has the offer
	// offered is when offeredTo, the first of them, was offered a slot. It is zero while
	// no slot is free.
	offered   time.Time
	offeredTo *slotsGate
}

// offerFor is how long a free slot waits for the pool that it is offered to. A pool that
// has a call to send takes it within a millisecond.
const offerFor = 50 * time.Millisecond

// slotsGate is the gate of one stage. It implements [pool.Gate].
type slotsGate struct {
	*slots
	wake func() // has its pool ask again; it does not block
}

// String returns the name of the limit, as holds show it.
func (g *slotsGate) String() string { return "calls in flight of the process" }

// Next implements [pool.Gate]. It returns now if the pool may send a call: a slot is
// free, and nobody waits or this pool has waited longest. Otherwise the pool joins those
// that wait, and asks again when it is woken or when the present offer is over.
func (g *slotsGate) Next(now time.Time, _ int64) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight >= g.limit {
		g.queue(g)
		return now.Add(time.Hour) // a call that ends wakes it
	}
	if len(g.waiting) > 0 && !g.offered.IsZero() && now.Sub(g.offered) >= offerFor &&
		g.waiting[0] != g {
		g.waiting = g.waiting[1:]
		g.offer(now)
	}
	if len(g.waiting) == 0 || g.waiting[0] == g {
		return now
	}
	g.queue(g)
	if g.offered.IsZero() {
		g.offer(now)
	}
	return g.offered.Add(offerFor)
}

// queue adds a pool to those that wait. The mutex is held.
func (s *slots) queue(g *slotsGate) {
	if !slices.Contains(s.waiting, g) {
		s.waiting = append(s.waiting, g)
	}
}

// offer offers a free slot to the pool that has waited longest. The others are woken,
// too, so that they ask again when the offer is over:
//
//  1. A and B wait, and the last call in flight ends. The slot is offered to A.
//  2. A has no row any more, and never asks.
//  3. B was woken, and got the end of the offer as its time. It asks again then, and has
//     the slot.
//
// Had only A been woken, nobody would ask again, since no call is left to end. The mutex
// is held.
func (s *slots) offer(now time.Time) {
	if len(s.waiting) == 0 || s.inFlight >= s.limit {
		s.offered, s.offeredTo = time.Time{}, nil
		return
	}
	if first := s.waiting[0]; s.offeredTo != first { // a further slot does not make an offer longer
		s.offered, s.offeredTo = now, first
	}
	for _, g := range s.waiting {
		g.wake()
	}
}

// Sent implements [pool.Gate].
func (g *slotsGate) Sent(now time.Time, _ int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
	if i := slices.Index(g.waiting, g); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	g.offer(now)
}

// Ended implements [pool.Gate].
func (g *slotsGate) Ended(now time.Time, _, _ int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	g.offer(now)
}

// processSlots are the slots of each account that stages of a process call. It is used
// while the stages are made, by one goroutine; only the slots themselves are shared.
type processSlots struct {
	limit     int                   // of each account, or 0 without a limit
	providers config.ProviderLimits // lower limits, by provider; may be nil
	of        map[string]*slots     // by account and fingerprint of the key
}

// newProcessSlots returns the slots of a process whose list of stages has this
// max_concurrency.
func newProcessSlots(limit int) *processSlots {
	return &processSlots{limit: limit, of: make(map[string]*slots)}
}

// gate returns the gate of a stage for a target, or nil if there is no limit.
func (p *processSlots) gate(t *call.Target, wake func()) pool.Gate {
	if p == nil || p.limit == 0 {
		return nil
	}
	key := t.Account() + "\n" + t.Fingerprint()
	if p.of[key] == nil {
		p.of[key] = &slots{limit: min(p.limit, cmp.Or(p.providers[t.Provider()], p.limit))}
	}
	return &slotsGate{p.of[key], wake}
}
