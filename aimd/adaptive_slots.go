package aimd

import "math"

// slotsRefusals is how many refusals that began an epoch are looked at for a limit on
// attempts in flight: all but one of so many must have met more attempts in flight than
// any accepted one. So four show it at the earliest.
const slotsRefusals = 5

// slots finds out whether the server limits the attempts in flight. Then a refusal must
// not lower the rate: the attempt was one too many at that moment, and the next may go as
// soon as one ends.
//
// More slots are tried as the rate climbs: one after the time in which a climb doubles the
// rate, x² after x times as long. That is one after 4.7 s and 25 after 23.5 s. At the 6/s
// of eight slots and calls of 1.2 s it wastes 3% of the calls.
type slots struct {
	limit  int     // most attempts in flight; 0 means that no limit is known
	since  float64 // when that was found
	levels []int   // attempts in flight at the latest refusals that began an epoch, or came while limit was known
}

// opens returns when one more attempt than inFlight may be in flight, apart from when one
// ends.
func (s *slots) opens(inFlight int) float64 {
	more := inFlight + 1 - s.limit
	if s.limit == 0 || more <= 0 {
		return 0
	}
	return s.since + 2*cruiseSec*math.Sqrt(float64(more))
}

// at returns how many may be in flight.
func (s *slots) at(now float64) int {
	x := max(0, now-s.since) / (2 * cruiseSec)
	return s.limit + int(x*x)
}

// explain reports whether it was a limit on attempts in flight that refused t. If so it
// has set limit.
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

// highest returns the most attempts in flight at an attempt before t that has not been
// refused; 0 means that all were, so there is nothing to compare with.
func (s *slots) highest(l *Adaptive, t Ticket) (level int) {
	for a := range l.history.before(t.mark.seq) {
		if !a.refused {
			level = max(level, a.level)
		}
	}
	return level
}
