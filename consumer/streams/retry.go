package streams

import (
	"context"
	"iter"
	"time"
)

// Retry yields until ctx ends, at once and then after each wait; what it yields is the
// next wait. Waits begin at first and double, up to most.
func Retry(ctx context.Context, first, most time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for wait := first; yield(wait); wait = min(2*wait, most) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	}
}
