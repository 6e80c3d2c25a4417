package aimd_test

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// limited is a server that accepts ten calls a second, up to five of them at once.
type limited struct {
	calls float64
	since time.Time
}

func (s *limited) accepts(now time.Time) bool {
	s.calls = min(5, s.calls+10*now.Sub(s.since).Seconds())
	s.since = now
	if s.calls < 1 {
		return false
	}
	s.calls--
	return true
}

// A whole small job: 600 calls, one after the other, to a server the limit of which the
// caller doesn't know. A real caller waits until the instants that the law names; this
// one sets its clock, so the example takes no time.
func Example() {
	law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	var server limited
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := began
	for done := 0; done < 600; {
		if at := law.Next(now, 0); at.After(now) {
			now = at // here a real caller waits, and asks again
			continue
		}
		ticket := law.Sent(now, 1)
		now = now.Add(20 * time.Millisecond) // the call
		if server.accepts(now) {
			law.Accepted(now, ticket)
			done++
		} else {
			law.Rejected(now, ticket, aimd.Hint{})
		}
	}
	fmt.Printf("600 calls in %.0f s\n", now.Sub(began).Seconds())
	fmt.Println("refused fewer than one in ten:", law.Stats().CapacityRetries < 60)
	// Output:
	// 600 calls in 60 s
	// refused fewer than one in ten: true
}
