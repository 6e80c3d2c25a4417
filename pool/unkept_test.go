package pool_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// TestCallsThatHaveEndedMayHoldTheirSlots has each call's slot held for a second after its end.
func TestCallsThatHaveEndedMayHoldTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, jobs = 4, 12
		var held, inFlight, most atomic.Int64
		cfg := pool.Config{Size: size, Retry: pool.DefaultRetry(), Unkept: func() int { return int(held.Load()) }}
		p := running(t, cfg, func(context.Context, int, pool.Attempt) (int, pool.Verdict) {
			most.Store(max(most.Load(), inFlight.Add(1)+held.Load()))
			time.Sleep(time.Second)
			inFlight.Add(-1)
			return 0, pool.Verdict{}
		})
		began, finished := time.Now(), make(chan struct{}, jobs)
		for i := range jobs {
			submit(t, p, i, func(result) {
				held.Add(1)
				time.AfterFunc(time.Second, func() {
					held.Add(-1)
					p.Wake()
				})
				finished <- struct{}{}
			})
		}
		for range jobs {
			<-finished
		}
		if got, want := time.Since(began), 5*time.Second; got != want || most.Load() > size {
			t.Errorf("%d jobs took %v, with up to %d slots taken; want %v and %d", jobs, got, most.Load(), want, size)
		}
		time.Sleep(time.Second)
	})
}
