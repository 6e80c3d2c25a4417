package pool_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/pool"
)

// bucketOf admits as many calls a second as perSec says, at most that many or one at once.
type bucketOf struct {
	perSec func(age time.Duration) float64

	mu    sync.Mutex
	began time.Time
	at    time.Time
	level float64
}

func (b *bucketOf) admits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	rate := b.perSec(now.Sub(b.began))
	b.level = min(max(1, rate), b.level+rate*now.Sub(b.at).Seconds())
	b.at = now
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

// In a brown-out single attempts get through. Once it has lasted as long as jobs may wait, what the first server does not
// take goes to the fallback, whatever bounded the rate before: the server, the pool, or the jobs there were.
func TestJobsPassAServerInABrownout(t *testing.T) {
	const after, begins, ends, over = 8 * time.Second, 2 * time.Minute, 5 * time.Minute, 7 * time.Minute
	usually := func(usual, then float64) func(time.Duration) float64 {
		return func(age time.Duration) float64 {
			if age < begins || age >= ends {
				return usual
			}
			return then
		}
	}
	for _, test := range []struct {
		name   string
		size   int
		every  time.Duration // comes a job
		perSec func(time.Duration) float64
		least  int // jobs that the fallback gets; 0: none at all
	}{
		{"the server was the limit", 32, 40 * ms, usually(20, 2), 1500},
		{"the pool was the limit", 8, 40 * ms, usually(1000, 1), 1200},
		{"the jobs were", 32, 100 * ms, usually(20, 1), 1400},
		{"it has a third left", 32, 40 * ms, usually(20, 7), 0},
		{"it lasts two seconds", 32, 40 * ms, func(age time.Duration) float64 {
			if age%time.Minute >= 58*time.Second {
				return 2
			}
			return 20
		}, 0},
		{"a bucket of a minute was full at first", 512, 5 * ms, func(age time.Duration) float64 {
			if age < 2*time.Second {
				return 400
			}
			return 20
		}, 0},
		{"it is always slow", 32, 40 * ms, usually(1, 1), 0},
	} {
		bubble(t, test.name, func(t *testing.T) {
			cfg := fallbacks(test.size, 1)
			cfg.Law, cfg.Fallbacks[0].Law = adaptive(t, test.size), spaced(t, 100*ms)
			cfg.FallbackAfter, cfg.QueueLimit = after, 100
			began := time.Now()
			b := &bucketOf{perSec: test.perSec, began: began, at: began}
			var mu sync.Mutex
			var fallback []time.Duration
			ctx, cancel := context.WithTimeout(t.Context(), over)
			defer cancel()
			p := running(t, cfg, func(_ context.Context, _ int, a pool.Attempt) (int, pool.Verdict) {
				if a.Server == 1 {
					mu.Lock()
					defer mu.Unlock()
					fallback = append(fallback, time.Since(began))
					return 1, ok
				}
				if !b.admits() {
					time.Sleep(50 * ms)
					return 0, busy
				}
				time.Sleep(500 * ms)
				return 0, ok
			})
			for ctx.Err() == nil {
				_ = p.Submit(ctx, 0, func(pool.Result[int, int]) {})
				pause(ctx, test.every)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(fallback) < test.least || test.least == 0 && len(fallback) > 0 {
				t.Fatalf("the fallback got %d jobs, want at least %d: %v", len(fallback), test.least, fallback[:min(10, len(fallback))])
			}
			if test.least == 0 {
				return
			}
			if first := fallback[0]; first < begins+after/2 || first > begins+2*after {
				t.Errorf("the fallback got the first job after %v, want %v after %v", first, after, begins)
			}
			if last := fallback[len(fallback)-1]; last > ends+15*time.Second {
				t.Errorf("the fallback still got jobs after %v: the brown-out had ended after %v", last, ends)
			}
		})
	}
}
