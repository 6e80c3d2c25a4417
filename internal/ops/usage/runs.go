package usage

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// runsMost bounds the runs that are told apart. Calls of further ones count as calls of one
// run, which makes the time that has passed too long and the speed-up too low.
const runsMost = 10_000

// runs are the processes that made the calls. Their last events have a summary, which
// says how much time has passed. A run that was killed has none, and all that is known of
// it follows from its calls.
type runs struct {
	byID map[string]*run
}

// run is one process.
type run struct {
	first, last time.Time
	calls       time.Duration // of all of them
	throttled   time.Duration
	slots       int // of its pool, or 0 if its first event is not among those that were read
}

func newRuns() runs { return runs{byID: make(map[string]*run)} }

// at returns the run of an event, which took place from one instant to another.
func (r *runs) at(id string, from, to time.Time) *run {
	one := r.byID[id]
	if one == nil && len(r.byID) >= runsMost {
		id = ""
		one = r.byID[id]
	}
	if one == nil {
		one = &run{first: from, last: to}
		r.byID[id] = one
	}
	if from.Before(one.first) {
		one.first = from
	}
	if to.After(one.last) {
		one.last = to
	}
	return one
}

// event adds an event of a run, if it is the first or the last one.
func (r *runs) event(e *auditlog.Run) {
	if e.Phase != auditlog.PhaseStart && e.Phase != auditlog.PhaseEnd {
		return
	}
	one := r.at(e.RunID, e.Time, e.Time)
	if e.Phase == auditlog.PhaseStart {
		one.slots, _ = strconv.Atoi(e.Settings["STAGE_POOL_SIZE"])
	}
	if e.Summary != nil {
		one.throttled = max(one.throttled, e.Summary.Throttled)
	}
}

// call adds a call. A line of a provider's batch does not count, because nobody waited for
// it.
func (r *runs) call(c *auditlog.Call) {
	if c.Lane != "" {
		return
	}
	one := r.at(c.RunID, c.Time.Add(-c.Latency), c.Time)
	one.calls += c.Latency
	one.throttled = max(one.throttled, c.Throttled)
}

// pace returns what the parallel calls of all runs gained. Time in which several runs
// worked counts once: a run from 10:00 to 11:00 and one from 10:30 to 12:00 took two
// hours.
func (r *runs) pace() auditlog.Pace {
	var calls, elapsed, throttled, known time.Duration
	var slots float64 // times seconds, of the runs whose pool is known; known are their calls
	var until time.Time
	for _, one := range slices.SortedFunc(maps.Values(r.byID), func(a, b *run) int { return a.first.Compare(b.first) }) {
		calls += one.calls
		throttled += one.throttled
		if one.slots > 0 {
			known += one.calls
			slots += float64(one.slots) * one.last.Sub(one.first).Seconds()
		}
		if from := later(one.first, until); one.last.After(from) {
			elapsed += one.last.Sub(from)
			until = one.last
		}
	}
	p := auditlog.NewPace(calls, elapsed, throttled, 1)
	if p.Utilisation = 0; slots > 0 {
		p.Utilisation = known.Seconds() / slots
	}
	return p
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
