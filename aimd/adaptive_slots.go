package aimd

import "math"

// The constants of the limit on attempts in flight.
const (
	// Of this many first refusals of an epoch all but one must have met more attempts in
	// flight than any accepted one.
	slotsRefusals = 5
	// After this time without a refusal one slot more is tried, then one more each
	// second. At the 6/s of eight slots and calls of 1.2 s that wastes 3% of the calls.
	slotsHoldSec = 5.0
	slotsStepSec = 1.0
)

// slots finds out whether the server limits the attempts in flight. Then a refusal must
// not lower the rate: the attempt was one too many at that moment, and the next may go as
// soon as one ends.
type slots struct {
	limit  int     // most attempts in flight; 0 means that no limit is known
	since  float64 // when that was found
	levels []int   // attempts in flight at the latest refusals that began an epoch
}

// opens returns when one more attempt than inFlight may be in flight, apart from when one
// ends.
func (s *slots) opens(now float64, inFlight int) float64 {
	limit := s.at(now)
	if s.limit == 0 || inFlight < limit {
		return 0
	}
	return s.since + slotsHoldSec + float64(limit-s.limit)*slotsStepSec
}

func (s *slots) at(now float64) int {
	idle := now - s.since - slotsHoldSec
	if idle < 0 {
		return s.limit
	}
	return s.limit + 1 + int(math.Floor(idle/slotsStepSec))
}

// explain reports whether it was a limit on attempts in flight that refused t. If so it
// has set or lowered its own.
func (s *slots) explain(l *Adaptive, t Ticket) bool {
	first := t.mark.epoch == l.epoch.number
	if s.limit > 0 && s.at(l.now) >= l.cfg.PoolSize {
		s.limit = 0 // all slots have been open: there is no such limit any more
	}
	if s.limit == 0 && !first {
		return false
	}
	if len(s.levels) == slotsRefusals {
		s.levels = s.levels[:copy(s.levels, s.levels[1:])]
	}
	s.levels = append(s.levels, t.InFlight)
	highest := s.highest(l, t)
	if s.limit > 0 {
		if t.InFlight <= min(highest, s.limit) {
			return false
		}
		s.set(l, min(t.InFlight-1, s.at(l.now)))
		return true
	}
	above, lowest := 0, math.MaxInt
	for _, level := range s.levels {
		if level > highest {
			above++
			lowest = min(lowest, level)
		}
	}
	if highest == 0 || above < slotsRefusals-1 {
		return false
	}
	s.set(l, lowest-1)
	l.bounds = bounds{} // what looked like a limit on the rate was this one
	l.epoch.heal()
	if l.estimate > 0 {
		l.enter(Cruise)
	}
	return true
}

func (s *slots) set(l *Adaptive, limit int) { s.limit, s.since = max(1, limit), l.now }

// highest returns the most attempts in flight that met acceptance before t; 0 means that
// no attempt was accepted, so there is nothing to compare with.
func (s *slots) highest(l *Adaptive, t Ticket) (level int) {
	for a := range l.history.before(t.mark.seq) {
		if !a.refused {
			level = max(level, a.level)
		}
	}
	return level
}
