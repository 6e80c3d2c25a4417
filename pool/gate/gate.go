// Package gate has limits for the attempts of a pool, beside a law that learns: so many a
// minute, so much weight a minute, so many in flight.
//
//	limits := []pool.Gate{gate.NewCallsPerMinute(600), gate.NewAtMost(8)}
//	p, err := pool.New(pool.Config{Size: 16, Gates: limits, Retry: pool.DefaultRetry()}, call)
//
// Other programs may rely on all of it. A gate is a small state machine that is passed
// every instant, so it runs the same in tests and in simulations.
package gate

import "time"

// slack is how far attempts may run ahead of a gate's even pace, so that a turn of the
// scheduler that is a moment late costs no throughput.
const slack = 100 * time.Millisecond

// PerMinute is a gate that admits a certain weight per minute, evenly spread: servers
// that state a limit per minute often enforce it per second. Attempts that each weigh 1
// never exceed the limit in any minute; heavier ones by the weight of one at most. When
// an attempt turns out lighter or heavier than estimated, the gate corrects its count.
//
// Not safe for concurrent use; a pool calls it from one goroutine. Make it with
// [NewPerMinute].
type PerMinute struct {
	unit time.Duration // how long a weight of 1 takes
	one  bool          // attempts count, not their weight
	free time.Time     // when the time of all that has passed is over
}

// NewPerMinute returns a gate for a weight of limit a minute, at least 1.
func NewPerMinute(limit int) *PerMinute {
	return &PerMinute{unit: perUnit(float64(limit))}
}

// NewCallsPerMinute returns a gate for limit attempts a minute, at least 1, whatever they
// weigh.
func NewCallsPerMinute(limit int) *PerMinute {
	g := NewPerMinute(limit)
	g.one = true
	return g
}

// SetLimit changes the limit from now on, at least 1 a minute. The weight for which the
// gate is closed stays the same, not the time: what went at a low limit would otherwise
// keep the gate closed for long at a high one.
func (g *PerMinute) SetLimit(now time.Time, limit float64) {
	unit := perUnit(limit)
	if wait := g.free.Sub(now); wait > 0 && unit != g.unit {
		g.free = now.Add(time.Duration(min(float64(wait)*float64(unit)/float64(g.unit), float64(time.Hour))))
	}
	g.unit = unit
}

// perUnit returns how long a weight of 1 takes.
func perUnit(limit float64) time.Duration {
	return time.Duration(float64(time.Minute+slack)/max(1, limit)) + 1
}

// String names what the gate counts.
func (g *PerMinute) String() string {
	if g.one {
		return "calls per minute"
	}
	return "tokens per minute"
}

// Next implements pool.Gate.
func (g *PerMinute) Next(time.Time, int64) time.Time { return g.free.Add(-slack) }

// Sent implements pool.Gate.
func (g *PerMinute) Sent(now time.Time, weight int64) {
	if g.free.Before(now) {
		g.free = now
	}
	g.free = g.free.Add(g.time(weight))
}

// Ended implements pool.Gate. An attempt that was counted stays counted, whatever became of
// it.
func (g *PerMinute) Ended(_ time.Time, weight, actual int64) {
	g.free = g.free.Add(g.time(actual) - g.time(weight))
}

// time returns how long the gate is closed for a weight, at most an hour: no usage that a
// server reports for one attempt may close it for good.
func (g *PerMinute) time(weight int64) time.Duration {
	if g.one {
		return g.unit
	}
	if weight > int64(time.Hour/g.unit) {
		return time.Hour
	}
	return time.Duration(weight) * g.unit
}

// AtMost is a gate that bounds the attempts in flight. Servers that share it share the
// limit.
//
// Not safe for concurrent use; a pool calls it from one goroutine. Make it with
// [NewAtMost].
type AtMost struct{ limit, inFlight int }

// NewAtMost returns a gate for limit attempts in flight, at least 1.
func NewAtMost(limit int) *AtMost { return &AtMost{limit: max(1, limit)} }

// String names what the gate counts.
func (g *AtMost) String() string { return "calls in flight" }

// Next implements pool.Gate: a closed gate opens when an attempt ends.
func (g *AtMost) Next(now time.Time, _ int64) time.Time {
	if g.inFlight < g.limit {
		return now
	}
	return now.Add(time.Hour)
}

// Sent implements pool.Gate.
func (g *AtMost) Sent(time.Time, int64) { g.inFlight++ }

// Ended implements pool.Gate.
func (g *AtMost) Ended(time.Time, int64, int64) { g.inFlight-- }
