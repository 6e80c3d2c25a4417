package pool_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// single is the result of a single attempt at a job named by a word.
type single = pool.Result[string, string]

// once returns an entrance to p whose attempts f makes.
func once(p *pool.Pool[int, int], f func(a pool.Attempt) pool.Verdict) *pool.Once[string, string] {
	return pool.NewOnce(p, func(_ context.Context, in string, a pool.Attempt) (string, pool.Verdict) {
		v := f(a)
		return "answer to " + in, v
	})
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
			p := running(t, pool.Config{Size: 2}, sleeper(ms))
			o := once(p, func(pool.Attempt) pool.Verdict { calls++; return v })
			r := o.Do(t.Context(), "x")
			if r.Class != v.Class || !errors.Is(r.Err, v.Err) || r.Out != "answer to x" || calls != 1 {
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

func TestSingleAttemptsStartInTheOrderOfAllJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		p := running(t, pool.Config{Size: 1}, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
			time.Sleep(time.Second)
			order = append(order, "job")
			return in, ok
		})
		o := once(p, func(pool.Attempt) pool.Verdict {
			time.Sleep(time.Second)
			order = append(order, "single")
			return ok
		})
		var all sync.WaitGroup
		for i := range 6 {
			if i%2 == 0 {
				all.Add(1)
				submit(t, p, i, func(result) { all.Done() })
			} else {
				all.Go(func() { o.Do(t.Context(), "x") })
			}
			synctest.Wait()
		}
		all.Wait()
		for i, got := range order {
			if want := []string{"job", "single"}[i%2]; got != want {
				t.Errorf("turn %d: %s, want %s: %v", i, got, want, order)
			}
		}
	})
}

// As many callers as the pool has slots ask again and again, while the jobs keep the queue full.
func TestSingleAttemptsLeaveJobsTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, minute = 8, time.Minute
		p := running(t, pool.Config{Size: size, QueueLimit: 2*size + 16}, sleeper(time.Second))
		o := once(p, answersAfter(time.Second, ok))
		ctx, cancel := context.WithTimeout(t.Context(), minute)
		defer cancel()
		jobs, singles := 0, make([]int, size)
		var all sync.WaitGroup
		for i := range singles {
			all.Go(func() {
				for ctx.Err() == nil {
					if o.Do(ctx, "x").Err == nil {
						singles[i]++
					}
				}
			})
		}
		for ctx.Err() == nil {
			if err := p.Submit(ctx, 0, func(result) { jobs++ }); err != nil {
				break
			}
		}
		all.Wait()
		synctest.Wait() // for the pool's goroutine, which counts jobs
		sum := 0
		for _, n := range singles {
			sum += n
		}
		if total := jobs + sum; total < size*55 || jobs*10 < total*7 || sum*10 < total {
			t.Errorf("in a minute %d jobs and %d single attempts, want 480 in all and at least 70%% jobs", jobs, sum)
		}
	})
}

func TestSingleAttemptsTakeNoPlaceOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1, QueueLimit: 1}, sleeper(time.Second))
		o := once(p, answersAfter(time.Second, ok))
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { o.Do(t.Context(), "x") })
		}
		synctest.Wait()
		began := time.Now()
		submit(t, p, 1, func(result) {})
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a job waited %v for single attempts", waited)
		}
		all.Wait()
	})
}

func TestAPausedPoolRefusesSingleAttemptsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		p := running(t, pool.Config{Size: 1}, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
			time.Sleep(time.Second)
			if !fixed.Load() {
				return 0, badKey
			}
			return in, ok
		})
		calls := 0
		o := once(p, func(pool.Attempt) pool.Verdict { calls++; return ok })
		submit(t, p, 1, func(result) {})
		synctest.Wait()

		began := time.Now()
		for _, when := range []string{"waiting as it pauses", "coming while it is paused"} {
			r := o.Do(t.Context(), when)
			if !errors.Is(r.Err, pool.ErrPaused) || !errors.Is(r.Err, errKey) || r.Class != pool.Fatal || calls != 0 {
				t.Errorf("%s: %+v after %d calls", when, r, calls)
			}
		}
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %v", waited)
		}
		time.Sleep(60*time.Second + 500*ms) // the probe is in flight
		if r := o.Do(t.Context(), "x"); !errors.Is(r.Err, errKey) {
			t.Errorf("during the probe: %+v", r)
		}
		fixed.Store(true)
		time.Sleep(2 * time.Minute)
		if r := o.Do(t.Context(), "x"); r.Err != nil {
			t.Errorf("after the pause: %+v", r)
		}
	})
}

func TestASingleAttemptThatIsGivenUpInTimeIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1}, sleeper(time.Minute))
		calls := 0
		o := once(p, func(pool.Attempt) pool.Verdict { calls++; return ok })
		submit(t, p, 1, func(result) {})
		cause := errors.New("caller went home")
		for range 100 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 10*ms, cause)
			if r := o.Do(ctx, "x"); r.Class != pool.Cancelled || !errors.Is(r.Err, cause) {
				t.Errorf("%+v", r)
			}
			cancel()
		}
		synctest.Wait()
		if waiting := p.Stats().Waiting; waiting != 0 {
			t.Errorf("%d are still in line", waiting)
		}
		time.Sleep(2 * time.Minute)
		if calls != 0 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestASingleAttemptInFlightIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1}, sleeper(ms))
		o := once(p, answersAfter(time.Minute, ok))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if r := o.Do(ctx, "x"); r.Err != nil || time.Since(began) != time.Minute {
			t.Errorf("%+v after %v", r, time.Since(began))
		}
	})
}

func TestAStopHandsSingleAttemptsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1}, sleeper(ms))
		o := once(p, answersAfter(time.Minute, ok))
		results := make(chan single, 2)
		for range 2 {
			go func() { results <- o.Do(t.Context(), "x") }()
			synctest.Wait()
		}
		p.Drain()
		if r := <-results; !errors.Is(r.Err, pool.ErrHandedBack) {
			t.Errorf("the one that waited: %+v", r)
		}
		if r := <-results; r.Err != nil {
			t.Errorf("the one in flight: %+v", r)
		}
		if r := o.Do(t.Context(), "x"); !errors.Is(r.Err, pool.ErrStopped) || r.Class != pool.Cancelled {
			t.Errorf("after the stop: %+v", r)
		}
	})
}

func TestAPanicOfASingleAttemptIsItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1}, sleeper(ms))
		o := once(p, func(pool.Attempt) pool.Verdict { panic("ouch") })
		r := o.Do(t.Context(), "x")
		if e, is := errors.AsType[*pool.PanicError](r.Err); !is || e.Value != "ouch" {
			t.Errorf("%+v", r)
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
		p := running(t, pool.Config{Size: 32, QueueLimit: 4000}, func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			return in, half(a)
		})
		o := once(p, half)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for ctx.Err() == nil {
					o.Do(ctx, "x")
					time.Sleep(ms) // an attempt that is refused takes no time: virtual time would stand still
				}
			})
		}
		jobs := failed(batch(t, p, 4000))
		cancel()
		all.Wait()
		if len(jobs) > 8 { // before it is known to be unhealthy
			t.Errorf("%d jobs failed: %v", len(jobs), jobs)
		}
	})
}
