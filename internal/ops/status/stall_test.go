package status

import (
	"strings"
	"testing"
	"time"
)

// each shows a watch the same sight, a look every five seconds for that long, and returns
// when it was reported first, as the time since the first look; below 0: never.
func each(w *Watch, from, total time.Duration, at func(time.Duration) Sight) (reported time.Duration, text string) {
	for d := from; d <= from+total; d += 5 * time.Second {
		s := at(d)
		s.At = epoch.Add(d)
		if s.Dispatch == 0 {
			s.Dispatch = 5 * time.Minute
		}
		if text := w.Saw(s); text != "" {
			return d, text
		}
	}
	return -1, ""
}

func TestAPartitionThatStandsStillForNoKnownReasonIsReported(t *testing.T) {
	for name, sight := range map[string]Sight{
		"rows are pending, none is taken":             {Asked: true, Mine: true, Pending: 2},
		"a row is delivered and never seen":           {Asked: true, Mine: true, AckPending: 1},
		"nobody serves the partition":                 {Asked: true, Pending: 2},
		"rows are taken and never called":             {Asked: true, Mine: true, Open: 3, Begun: 9},
		"the same, and the server does not answer":    {Mine: true, Open: 3},
		"all are answered, and no result is stored":   {Asked: true, Mine: true, Open: 3, Answered: 3, InFlight: 5, Waiting: 9},
		"a call has not ended long after its timeout": {Asked: true, Mine: true, Open: 1, InFlight: 1, Dispatch: time.Nanosecond},
	} {
		got, text := each(new(Watch), 0, time.Hour, func(time.Duration) Sight { return sight })
		if got < StalledAfter || got > StalledAfter+5*time.Second || !strings.HasPrefix(text, "no progress for 20s although rows wait: ") {
			t.Errorf("%s: reported after %v: %q", name, got, text)
		}
	}
}

func TestARowThatHasAReasonToWaitIsNoStall(t *testing.T) {
	for name, at := range map[string]func(time.Duration) Sight{
		"no rows":                  func(time.Duration) Sight { return Sight{Asked: true, Mine: true} },
		"it is known":              func(time.Duration) Sight { return Sight{Asked: true, Mine: true, Pending: 1, Held: true} },
		"another replica has them": func(time.Duration) Sight { return Sight{Asked: true, Pinned: true, Pending: 5} },
		"another may have them":    func(time.Duration) Sight { return Sight{Pending: 5} },
		"rows are in a batch":      func(time.Duration) Sight { return Sight{Asked: true, Mine: true, AckPending: 5, Parked: 5} },
		"answered rows wait behind them": func(time.Duration) Sight {
			return Sight{Asked: true, Mine: true, AckPending: 8, Parked: 5, Open: 3, Answered: 3}
		},
		"a row waits beside a batch, and others are answered": func(time.Duration) Sight {
			return Sight{Asked: true, Mine: true, AckPending: 8, Parked: 5, Open: 3, Answered: 2}
		},
		"a call of an hour is in flight": func(time.Duration) Sight {
			return Sight{Asked: true, Mine: true, AckPending: 9, Open: 9, Answered: 8, InFlight: 1, Dispatch: 65 * time.Minute}
		},
		"no call is let through": func(time.Duration) Sight {
			return Sight{Asked: true, Mine: true, AckPending: 9, Open: 9, Waiting: 9, Throttled: true}
		},
		"a call each four minutes": func(d time.Duration) Sight {
			return Sight{Asked: true, Mine: true, AckPending: 9, Open: 9, Waiting: 9, Begun: uint64(d / (4 * time.Minute))}
		},
		"a result each fifteen seconds": func(d time.Duration) Sight {
			return Sight{Asked: true, Mine: true, Pending: 9, Emitted: uint64(d / (15 * time.Second))}
		},
		"a new row each fifteen seconds": func(d time.Duration) Sight {
			return Sight{Asked: true, Mine: true, Pending: uint64(d/(5*time.Second)) % 3}
		},
		"a redelivered row, emitted there": func(d time.Duration) Sight {
			return Sight{Asked: true, Mine: true, Pending: 9, Mark: uint64(d / (15 * time.Second))}
		},
	} {
		if got, text := each(new(Watch), 0, time.Hour, at); got >= 0 {
			t.Errorf("%s: reported after %v: %s", name, got, text)
		}
	}
}

// A pool that sends nothing for long is a stall, too, though other partitions keep it busy.
func TestRowsThatAreNeverTheirTurnAreReported(t *testing.T) {
	got, text := each(new(Watch), 0, time.Hour, func(time.Duration) Sight {
		return Sight{Asked: true, Mine: true, AckPending: 9, Open: 9, Waiting: 40, InFlight: 16}
	})
	if want := 5*time.Minute + StalledAfter; got != want {
		t.Errorf("reported after %v, want %v: %s", got, want, text)
	}
}

// The report ends with the first result, and what it says is what was seen.
func TestAStallEndsWithAResult(t *testing.T) {
	var w Watch
	stuck := Sight{Asked: true, Mine: true, Pending: 2, AckPending: 1, Emitted: 2, Mark: 2}
	each(&w, 0, 0, func(time.Duration) Sight { s := stuck; s.Emitted = 1; return s })
	_, text := each(&w, 5*time.Second, time.Minute, func(time.Duration) Sight { return stuck })
	want := "no progress for 20s although rows wait: the server has 2 rows pending and 1 delivered without an ack; this replica has taken 0, " +
		"of which 0 are answered, and has 0 calls in flight and 0 waiting; last result 20s ago; every row up to 2 has one"
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	stuck.Emitted++
	if got, text := each(&w, 30*time.Second, 15*time.Second, func(time.Duration) Sight { return stuck }); got >= 0 {
		t.Errorf("after a result: %s", text)
	}
}
