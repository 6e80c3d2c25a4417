package health

import (
	"math"
	"testing"
)

func TestTheShareIsThatOfCallsThatFail(t *testing.T) {
	for _, each := range []int{2, 5} {
		var s failing
		for i := range 1000 {
			s.sent()
			if i%each == 0 {
				s.failed()
			}
		}
		if want := 1 / float64(each); math.Abs(s.long-want) > 0.02 || math.Abs(s.lately-want) > 0.04 {
			t.Errorf("one in %d fails, the share is %+v", each, s)
		}
	}
}

func TestACallWithoutAVerdictLeavesTheShareAsItWas(t *testing.T) {
	s := failing{long: 0.5, lately: 0.4}
	for range 100 {
		s.sent()
		s.void()
	}
	if math.Abs(s.long-0.5) > 1e-9 || math.Abs(s.lately-0.4) > 1e-9 {
		t.Errorf("the share is %+v", s)
	}
}

func TestAServerIsIllBeforeAJobHasFailedThreeTimes(t *testing.T) {
	var s failing
	for n := 1; n <= 50; n++ {
		s.sent()
		if n%2 == 0 {
			s.failed()
		}
		if s.unhealthy() {
			return // two seconds at 20/s
		}
	}
	t.Errorf("after 50 calls of which half fail the share is %+v", s)
}
