package auditlog

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	for _, tt := range []struct {
		calls, elapsed time.Duration
		slots          int
		want           Pace
	}{
		{120 * time.Second, 10 * time.Second, 16, Pace{CallsS: 120, ElapsedS: 10, Speedup: 12, Utilisation: .75}},
		{0, 10 * time.Second, 16, Pace{ElapsedS: 10}},
		{time.Second, 0, 16, Pace{CallsS: 1}},
		{time.Second, time.Second, 0, Pace{CallsS: 1, ElapsedS: 1}},
	} {
		if got := NewPace(tt.calls, tt.elapsed, 0, tt.slots); got != tt.want {
			t.Errorf("%v in %v: %+v, want %+v", tt.calls, tt.elapsed, got, tt.want)
		}
	}
}

func TestTextOfAPace(t *testing.T) {
	short := NewPace(900*time.Millisecond, time.Minute, 0, 16)
	for _, tt := range []struct {
		pace  Pace
		slots int
		want  string
	}{
		{NewPace(2*time.Minute, 10*time.Second, 1500*time.Millisecond, 16), 16, "12.0: calls of 2m0s in 10s, 75% of 16 slots in use, throttled for 1.5s"},
		{NewPace(2*time.Minute, 10*time.Second, 0, 16), 0, "12.0: calls of 2m0s in 10s, 75% of the slots in use, throttled for 0s"},
		{short, 16, ""},
	} {
		if got := tt.pace.Gain(tt.slots); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.pace, got, tt.want)
		}
	}
}
