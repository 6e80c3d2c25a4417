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
