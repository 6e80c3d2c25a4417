package pool_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// errand is a job or a single attempt.
type errand struct {
	single bool
	do     func(pool.Attempt) pool.Verdict
}

func (e *errand) Traits() pool.Traits { return pool.Traits{Single: e.single} }

// errands returns a pool of errands that runs until the test ends.
func errands(t *testing.T, cfg pool.Config) *pool.Pool[*errand, int] {
	t.Helper()
	return running(t, cfg, func(_ context.Context, e *errand, a pool.Attempt) (int, pool.Verdict) { return 7, e.do(a) })
}

// begin adds an errand, and returns where its result comes.
func begin(t *testing.T, p *pool.Pool[*errand, int], single bool, do func(pool.Attempt) pool.Verdict) <-chan pool.Result[*errand, int] {
	t.Helper()
	result := make(chan pool.Result[*errand, int], 1)
	if err := p.Add(&errand{single, do}, func(r pool.Result[*errand, int]) { result <- r }); err != nil {
		t.Fatal(err)
	}
	return result
}

func answersAfter(d time.Duration, v pool.Verdict) func(pool.Attempt) pool.Verdict {
	return func(pool.Attempt) pool.Verdict {
		time.Sleep(d)
		return v
	}
}

func TestASingleAttemptIsTheResultWhateverTheVerdict(t *testing.T) {
	for _, v := range []pool.Verdict{ok, busy, reset, bad, badKey, cancelled} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			p := errands(t, pool.Config{Size: 2})
			r := <-begin(t, p, true, func(pool.Attempt) pool.Verdict { calls++; return v })
			if r.Class != v.Class || !errors.Is(r.Err, v.Err) || r.Out != 7 || calls != 1 {
				t.Errorf("%v: %+v after %d calls", v.Class, r, calls)
			}
			synctest.Wait() // for the pool's goroutine, which counts after the caller has its result
			stats := p.Stats()
			if want := v.Class == pool.Capacity; (stats.CapacityRetries == 1) != want {
				t.Errorf("%v: %d capacity retries", v.Class, stats.CapacityRetries)
			}
			if reasonOf(stats) != "" || stats.Waiting != 0 {
				t.Errorf("%v: %+v", v.Class, stats)
			}
			if v.Class == pool.Capacity && stats.CurrentDelay == 0 {
				t.Error("the law did not see the rejection")
			}
		})
	}
}

func TestJobsAndSingleAttemptsStartInTheOrderInWhichTheyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int
		p := errands(t, pool.Config{Size: 1})
		for i := range 6 {
			begin(t, p, i%2 == 1, func(pool.Attempt) pool.Verdict {
				order = append(order, i)
				return ok
			})
		}
		synctest.Wait()
		if want := []int{0, 1, 2, 3, 4, 5}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

func TestAPausedPoolRefusesSingleAttemptsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		p := errands(t, pool.Config{Size: 1})
		begin(t, p, false, func(pool.Attempt) pool.Verdict {
			time.Sleep(time.Second)
			if !fixed.Load() {
				return badKey
			}
			return ok
		})
		synctest.Wait()
		calls, began := 0, time.Now()
		attempt := func(pool.Attempt) pool.Verdict { calls++; return ok }
		for _, when := range []string{"waiting as it pauses", "coming while it is paused"} {
			r := <-begin(t, p, true, attempt)
			if !errors.Is(r.Err, pool.ErrPaused) || !errors.Is(r.Err, errKey) || r.Class != pool.Fatal || calls != 0 {
				t.Errorf("%s: %+v after %d calls", when, r, calls)
			}
		}
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %v", waited)
		}
		time.Sleep(60*time.Second + 500*ms) // the probe is in flight
		if r := <-begin(t, p, true, attempt); !errors.Is(r.Err, errKey) {
			t.Errorf("during the probe: %+v", r)
		}
		fixed.Store(true)
		time.Sleep(2 * time.Minute)
		if r := <-begin(t, p, true, attempt); r.Err != nil {
			t.Errorf("after the pause: %+v", r)
		}
		if waiting := p.Stats().Waiting; waiting != 0 {
			t.Errorf("%d are counted as waiting", waiting)
		}
	})
}

func TestAStopHandsSingleAttemptsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := errands(t, pool.Config{Size: 1})
		inFlight := begin(t, p, true, answersAfter(time.Minute, ok))
		synctest.Wait()
		waits := begin(t, p, true, answersAfter(time.Minute, ok))
		p.Drain()
		if r := <-waits; !errors.Is(r.Err, pool.ErrHandedBack) {
			t.Errorf("the one that waited: %+v", r)
		}
		if r := <-inFlight; r.Err != nil {
			t.Errorf("the one in flight: %+v", r)
		}
	})
}

// Failures of single attempts are the server's as those of jobs are: beside many of them a server that fails half of
// all calls passes for unhealthy all the same, and no job is lost to it.
func TestFailuresOfSingleAttemptsShowAnIllServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		var mu sync.Mutex
		half := func(pool.Attempt) pool.Verdict {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if rng.Float64() < .5 {
				return sick
			}
			return ok
		}
		p := errands(t, pool.Config{Size: 32, QueueLimit: 4000})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for ctx.Err() == nil {
					<-begin(t, p, true, half)
					time.Sleep(ms) // an attempt that is refused takes no time: virtual time would stand still
				}
			})
		}
		ins := make([]*errand, 4000)
		for i := range ins {
			ins[i] = &errand{do: half}
		}
		failed := 0
		for _, r := range execute(t, p, ins) {
			if r.Err != nil {
				failed++
			}
		}
		cancel()
		all.Wait()
		if failed > 8 { // before it is known to be unhealthy
			t.Errorf("%d jobs failed", failed)
		}
	})
}
