package aimd

import (
	"math"
	"testing"
	"time"
)

// A law that serves many processes trusts silence later once it was refused twice.
func TestDrainOfALawThatHearsLate(t *testing.T) {
	cfg := AdaptiveConfig{Config: Default(), PoolSize: 100, SureSilence: 700 * time.Millisecond}
	law, err := NewAdaptive(cfg)
	if err != nil {
		t.Fatal(err)
	}
	law.Share(true)
	now := time.Unix(0, 0)
	law.Next(now, 0)
	law.Resume(now, 10)
	for i, test := range []struct {
		rate    float64
		silence time.Duration // after which the attempt counts as accepted
	}{{5, 110 * time.Millisecond}, {2.5, 700 * time.Millisecond}, {1.25, 700 * time.Millisecond}} {
		now = law.Next(now, 0)
		for law.Next(now, 0).After(now) {
			now = law.Next(now, 0)
		}
		ticket := law.Sent(now, 1)
		now = now.Add(100 * time.Millisecond)
		law.Rejected(now, ticket, Hint{})
		if got := law.Rate(now); math.Abs(got-test.rate) > 1e-9 || law.Phase() != Drain {
			t.Fatalf("after %d refusals %v at %g/s, want drain at %g/s", i+1, law.Phase(), got, test.rate)
		}
		if got := law.silence(); i > 0 && got != test.silence.Seconds() || i == 0 && got > shortSec {
			t.Errorf("after %d refusals silence counts after %v s, want %v", i+1, got, test.silence)
		}
	}
}
