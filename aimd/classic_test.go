package aimd

import (
	"testing"
	"time"
)

// at returns an instant that long after an arbitrary beginning.
func at(d time.Duration) time.Time { return time.Unix(1_000_000, 0).Add(d) }

func newClassic(tb testing.TB, change func(*Config)) *Classic {
	tb.Helper()
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	law, err := NewClassic(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return law
}

func TestClassicSpacesAttemptsByTheDelay(t *testing.T) {
	law := newClassic(t, nil)
	ticket := law.Sent(at(0), 1)
	if want := (Ticket{Sent: at(0), InFlight: 1}); ticket != want {
		t.Errorf("ticket %+v, want %+v", ticket, want)
	}
	law.Rejected(at(10*ms), ticket, Hint{RetryAfter: time.Hour}) // the row's own minimum is not the law's
	if got, want := law.Next(at(10*ms), 0), at(50*ms); !got.Equal(want) {
		t.Errorf("after one error the next may go at %v, want %v", got, want)
	}
	law.Dropped(at(20*ms), law.Sent(at(20*ms), 1)) // spaces the next one, teaches nothing
	if got, want := law.Next(at(20*ms), 0), at(70*ms); !got.Equal(want) {
		t.Errorf("after another attempt the next may go at %v, want %v", got, want)
	}
	law.Accepted(at(80*ms), law.Sent(at(80*ms), 1))
	if got := law.Next(at(80*ms), 0); got.After(at(80 * ms)) {
		t.Errorf("recovered, the next may go at %v, want at once", got)
	}
	if got, want := law.Stats(), (Stats{CapacityRetries: 1, Successes: 1, PeakDelay: 50 * ms}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}

func TestClassicHonoursTheFloorBeforeAnyError(t *testing.T) {
	law := newClassic(t, func(c *Config) { c.MinDelay = 30 * ms })
	if next := law.Next(at(0), 0); next.After(at(0)) {
		t.Errorf("the first attempt may go at %v, want at once", next)
	}
	law.Sent(at(0), 1)
	if got, want := law.Next(at(0), 1), at(30*ms); !got.Equal(want) {
		t.Errorf("the second attempt may go at %v, want %v", got, want)
	}
}
