package pool

import (
	"sync"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// Stats are a pool's statistics since it was made.
type Stats struct {
	// PoolSize is Config.Size.
	PoolSize int
	// Dispatched counts attempts, those in flight included.
	Dispatched uint64
	// CapacityRetries counts attempts that met a capacity error.
	CapacityRetries uint64
	// Successes counts attempts that succeeded.
	Successes uint64
	// MaxConcurrent is the highest number of calls that were in flight at once.
	MaxConcurrent int
	// InFlight is the number of calls in flight.
	InFlight int
	// Waiting is the number of jobs that wait for their first or next attempt.
	Waiting int
	// ThrottleTime is the time during which a job was ready and a slot free, but laws or
	// gates made them wait.
	ThrottleTime time.Duration
	// FullTime is the time during which a job waited and every slot was taken, so that a
	// further slot would have been used if the law allowed it.
	FullTime time.Duration
	// ExecTime is the sum of the durations of all calls that have ended.
	ExecTime time.Duration
	// PeakDelay is the longest delay between dispatches so far, by the law of the first
	// server.
	PeakDelay time.Duration
	// CurrentDelay is the present delay between dispatches, by the same law.
	CurrentDelay time.Duration
	// LawPausedUntil is when a pause that the first server asked for ends, as computed by
	// its law. It may lie in the past, and is zero if there was none.
	LawPausedUntil time.Time
	// LawPauseReason is what made the law pause until then.
	LawPauseReason aimd.PauseReason
	// LawConcurrency is the most calls that the first server makes use of, as found by
	// its law, where the server lets more than that wait; 0 means that none is known.
	LawConcurrency int
	// LawBelief is what the law of the first server believes about it.
	LawBelief aimd.Belief
	// Pause is why the pool is paused. It is the zero value while the pool runs.
	Pause Pause
	// Shortage is what this machine is short of while that bounds the calls in flight, or
	// nil.
	Shortage error
}

// counts is what the scheduler counts as it happens. The rest of the statistics is known
// elsewhere: see scheduler.snapshot.
type counts struct {
	Stats

	// These say what the time since the last turn of the scheduler's loop is spent on.
	throttled bool // a job was ready and a slot free, but law or gates made it wait
	full      bool // a job waited and every slot of the pool was taken
}

// spend adds the time that has passed since the last turn.
func (c *counts) spend(d time.Duration) {
	if c.throttled {
		c.ThrottleTime += d
	}
	if c.full {
		c.FullTime += d
	}
}

// shown is the statistics that callers of Stats see: those of the scheduler's last turn,
// with the times that have gone on since.
type shown struct {
	mu     sync.Mutex // held for the time of a copy
	counts counts
	turn   time.Time // when that turn was
}

func (v *shown) set(c counts, turn time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts, v.turn = c, turn
}

func (v *shown) now() Stats {
	v.mu.Lock()
	c, turn := v.counts, v.turn
	v.mu.Unlock()
	c.spend(time.Since(turn))
	return c.Stats
}
