package pool_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// TestRecallHandsBackWhatWaitsAndNothingElse recalls the even jobs while six are in flight, 2 and 3 are in backoff, and
// the last four in the queue.
func TestRecallHandsBackWhatWaitsAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := map[int]pool.Verdict{2: reset, 3: reset, 4: busy, 5: busy}
		p := running(t, pool.Config{Size: 6, Rand: func() float64 { return 1 }},
			func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				if v, is := first[in]; is && a.Number == 1 {
					return 0, v
				}
				time.Sleep(10 * time.Second)
				return 2 * in, ok
			})
		var handed, done []int
		for i := range 12 {
			submit(t, p, i, func(r result) {
				if handedBack(r) {
					handed = append(handed, r.In)
				} else if r.Err == nil {
					done = append(done, r.In)
				}
			})
		}
		time.Sleep(time.Second)
		if got := p.Stats(); got.InFlight != 6 {
			t.Fatalf("%d calls in flight, want 6", got.InFlight)
		}
		inAir := []int{0, 1, 4, 5, 6, 7} // those that were refused for capacity went again before the next
		waiting := p.Stats().Waiting
		p.Recall(func(in int) bool { return in%2 == 0 })
		synctest.Wait()
		slices.Sort(handed)
		for _, in := range handed {
			if in%2 != 0 || slices.Contains(inAir, in) {
				t.Errorf("job %d was handed back", in)
			}
		}
		if got := p.Stats(); got.Waiting != waiting-len(handed) || len(handed) != 3 {
			t.Errorf("%v were handed back, and %d of %d wait", handed, got.Waiting, waiting)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if len(handed)+len(done) != 12 || !slices.Contains(done, 3) || !slices.Contains(done, 11) {
			t.Errorf("done %v, handed back %v", done, handed)
		}
	})
}

// TestRecallMakesRoomInTheQueue has a Submit wait that may go on.
func TestRecallMakesRoomInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1, QueueLimit: 2}, sleeper(time.Hour))
		for i := range 3 {
			submit(t, p, i, func(result) {})
		}
		submitted := make(chan error, 1)
		go func() { submitted <- p.Submit(t.Context(), 3, func(result) {}) }()
		synctest.Wait()
		if len(submitted) > 0 {
			t.Fatal("a full queue took a job")
		}
		p.Recall(func(in int) bool { return in == 1 })
		p.Recall(func(in int) bool { return in == 9 }) // adds to the one before
		if err := <-submitted; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := p.Stats().Waiting; got != 2 {
			t.Errorf("%d jobs wait, want 2", got)
		}
	})
}
