//go:build !race

// A world is one goroutine: the race detector would only make it ten times slower.

package fleet

import "testing"

// What somebody has set holds from the first call on, and under each next leader, also one that has set nothing.
func TestCallsAMinuteHoldUnderEachLeader(t *testing.T) {
	w := newWorld(t, 1, 3, 1000, 1000)
	w.members[2].cfg.Limits = Limits{RPM: 60}
	w.run(10)
	if w.sent > 13 {
		t.Errorf("%d calls in the first 10 s, at one a second", w.sent)
	}
	for range 4 {
		last := w.leader()
		last.off = true
		w.count()
		w.run(8)
		if w.sent > 11 && last != w.members[2] {
			t.Errorf("%d calls in the 8 s after the leader died, at one a second", w.sent)
		}
		last.off = false
		w.run(5)
	}
	w.dead = true
	w.run(3)
	w.count()
	w.run(100)
	if w.sent > 110 {
		t.Errorf("%d calls in 100 s without a message, at one a second", w.sent)
	}
}

func TestCallsInFlightHoldUnderEachLeader(t *testing.T) {
	w := newWorld(t, 1, 3, 1000, 1000)
	w.members[2].cfg.Limits = Limits{Concurrency: 6}
	most := 0
	for _, n := range w.members {
		n.demand = func(now float64) bool {
			inFlight := 0
			for _, n := range w.members {
				if !n.off {
					inFlight += n.inFlight
				}
			}
			most = max(most, inFlight)
			return n.Room(n.at(now), n.inFlight)
		}
	}
	w.run(10)
	for range 4 {
		last := w.leader()
		most, last.off = 0, true
		w.run(8)
		if most > 6 && last != w.members[2] {
			t.Errorf("%d calls in flight after the leader has left, at most 6 are allowed", most)
		}
		last.off = false
		w.run(5)
	}
}
