package consumer_test

import (
	"slices"
	"time"
)

// journalSlack is how long a reply takes into the journal at most once it has waited long enough, while all is well.
const journalSlack = 100 * time.Millisecond

// unsafe counts the calls of a process that may be lost if it dies now: those that hold a slot, and those whose reply came
// so recently that it may wait for the journal.
func (s *sim) unsafe(l *life, now time.Time) (inFlight, recent int) {
	inFlight = l.exec.stuck()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.by == l && !c.answered.IsZero() && now.Sub(c.answered) <= l.journalAfter {
			recent++
		}
	}
	return inFlight, recent
}

// safeAt is when the reply to a call is in the journal, or emitted, while all is well.
func (s *sim) safeAt(c *simCall) time.Time { return c.answered.Add(c.by.journalAfter + journalSlack) }

// checkMoney checks that a call is made again only where its reply was in flight, or had just come, when the process
// died, fell asleep, lost the server or lost the partition. So a crash costs as many calls as the pool is large, and
// what came in the last moment.
func (s *sim) checkMoney() {
	s.t.Helper()
	if !s.thrifty() {
		return
	}
	for of, calls := range s.callsFor {
		for i, c := range calls[1:] {
			first := calls[i]
			why := s.needless(first, c)
			if why == "" && s.inJournal(c) {
				why = "the reply was in the journal"
			}
			if why != "" {
				s.t.Errorf("MONEY: row %d (element %d) was called by %s (answered at %v) and again by %s at %v: %s",
					of.row, of.item, first.owner, first.answered.Sub(s.began), c.owner, c.begun.Sub(s.began), why)
			}
		}
	}
}

// needless returns why the second call was not needed; empty: it was.
func (s *sim) needless(first, again *simCall) string {
	claims := s.claims[first.partition]
	// Between the term of the first call and that of the second there may be others, by owners that died young.
	from := slices.IndexFunc(claims, func(c simClaim) bool { return c.owner == first.owner })
	to := slices.IndexFunc(claims, func(c simClaim) bool { return c.owner == again.owner })
	handedOver := first.by.handedOver(first)
	if first.by == again.by && (from < 0 || to < from || !slices.ContainsFunc(claims[from:to+1], func(c simClaim) bool { return c.by != first.by })) {
		if first.answered.IsZero() || !handedOver.IsZero() && s.unwell(first.by, first.answered, again.begun) {
			return "" // cut by a drain, or kept for somebody else
		}
		return "the reply was in its memory"
	}
	if first.answered.IsZero() || from < 0 || to < from {
		return "" // called in a term that was over
	}
	lost := to
	for i := to; i > from; i-- {
		if claims[i].by == first.by {
			continue
		}
		lost = i
		// An owner that could not read the journal pays again.
		if c := claims[i]; i == to && s.unwell(c.by, c.at, again.begun) {
			return ""
		}
	}
	safe := s.safeAt(first)
	over := claims[lost].at
	switch {
	case !handedOver.IsZero() && !handedOver.After(over) && !s.unwell(first.by, first.answered, handedOver):
		return "its process has handed over since"
	case safe.Before(over) && !s.unwell(first.by, first.answered, safe):
		return "the reply had the time to be kept"
	}
	return ""
}

// handedOver is when the process had kept what it leaves to the next owner, after a call was answered; zero: it did not.
func (l *life) handedOver(c *simCall) time.Time {
	for _, at := range l.drained[c.partition] {
		if !c.answered.IsZero() && !at.Before(c.answered) {
			return at
		}
	}
	return time.Time{}
}

// unwell reports whether a process, or without one the server, had trouble during a time.
func (s *sim) unwell(l *life, from, to time.Time) bool {
	meets := func(t span) bool { return !t.from.After(to) && !t.to.Before(from) }
	return l != nil && slices.ContainsFunc(l.troubled, meets) || slices.ContainsFunc(s.troubled, meets)
}

// ownerAt returns the owner of a partition at a time, by the log; nil: nobody owned it.
func (s *sim) ownerAt(partition int, at time.Time) (by *life, since time.Time) {
	for _, c := range s.claims[partition] {
		if c.at.Before(at) {
			by, since = c.by, c.at
		}
	}
	return by, since
}

// checkSleepers checks that a process that was suspended, and whose partition went to another meanwhile, begins no call
// there when it wakes up. What it had in flight is paid twice, which is one pool.
func (s *sim) checkSleepers() {
	s.t.Helper()
	for _, l := range s.lives {
		for _, slept := range l.sleeps {
			begun := 0
			for _, c := range s.calls {
				if c.by != l || c.begun.Before(slept.to) || c.begun.After(slept.to.Add(2*time.Second)) {
					continue
				}
				if by, since := s.ownerAt(c.partition, slept.to.Add(-50*time.Millisecond)); by != l && since.After(slept.from) {
					if late, _ := s.ownerAt(c.partition, c.begun); late == by {
						begun++
					}
				}
			}
			if begun > 0 {
				s.t.Errorf("SLEEP: %s was suspended until %v and then began %d calls of a partition that another had claimed meanwhile", l.name, slept.to.Sub(s.began), begun)
			}
		}
	}
}

// checkResets checks that a process resets the consumer for its successor only while it is not fenced: a moment before
// the hand-over it has read the log.
func (s *sim) checkResets() {
	s.t.Helper()
	for _, r := range s.resets {
		read := r.drained.Add(-2*r.latency - 50*time.Millisecond)
		if claimed, _ := s.ownerAt(r.partition, r.drained); claimed == r.by {
			continue
		}
		if by, since := s.ownerAt(r.partition, read); by != r.by && by != nil {
			s.t.Errorf("RESET: %s handed partition %d over at %v and reset the consumer, which was %s's since %v",
				r.by.name, r.partition, r.drained.Sub(s.began), by.name, since.Sub(s.began))
		}
	}
}
