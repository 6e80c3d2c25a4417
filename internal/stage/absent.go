package stage

import (
	"context"
	"fmt"
	"time"
)

const (
	// absentPatience is how long a job waits for a server that has not been started: one
	// that starts beside it is up by then, and a person who forgot to start it, or
	// mistyped the address, still looks at the screen. A service waits without end.
	absentPatience = 30 * time.Second
	absentCheck    = time.Second
)

// giveUpAbsent ends the run with a [FatalError] once nothing has listened at the
// provider's address for absentPatience. It returns with the first success, or when ctx
// ends.
func (s *Stage) giveUpAbsent(ctx context.Context) {
	tick := time.NewTicker(absentCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		stats := s.executor.Pool.Stats()
		if stats.Successes > 0 {
			return
		}
		if p := stats.Pause; !p.Absent.IsZero() && time.Since(p.Absent) >= absentPatience {
			s.ending.stop(&FatalError{Err: fmt.Errorf("fatal provider error: %w; gave up after %v", p.Err, absentPatience)})
			return
		}
	}
}
