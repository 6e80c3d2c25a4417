package pool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

const stuckKey = 1

func adaptive(t *testing.T, size int) pool.Law {
	t.Helper()
	law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(size))
	if err != nil {
		t.Fatal(err)
	}
	return law
}

// rider is a job of a key, which is a number.
type rider struct{ key int }

func (r *rider) Traits() pool.Traits { return pool.Traits{Key: fmt.Sprint(r.key)} }

func ofKeys(keys ...int) (riders []*rider) {
	for _, key := range keys {
		riders = append(riders, &rider{key})
	}
	return riders
}

// riding returns a pool of riders that runs until the end of the test.
func riding(t *testing.T, cfg pool.Config, f func(*rider) pool.Verdict) *pool.Pool[*rider, int] {
	t.Helper()
	return running(t, cfg, func(_ context.Context, r *rider, _ pool.Attempt) (int, pool.Verdict) { return 0, f(r) })
}

// crowded is a pool of 64 in which the jobs of one key are refused, while the others, each of a key of its own, take 40
// to 60 ms.
type crowded struct {
	stuck      int           // jobs of the key that is refused
	late       time.Duration // when they come
	every      time.Duration // another job comes; 0: as many as there is room for
	retryAfter time.Duration
	lasts      time.Duration
}

// run returns, of the other jobs, how many are done and the 99th percentile of how long they take, and how many calls of
// the stuck ones were refused.
func (c crowded) run(t *testing.T) (done int, p99 time.Duration, refusals int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		verdict := busy
		verdict.Hint.RetryAfter = c.retryAfter
		var mu sync.Mutex // refusals, took
		p := riding(t, pool.Config{Size: 64, QueueLimit: 144, Law: adaptive(t, 64)}, func(r *rider) pool.Verdict {
			time.Sleep(time.Duration(40+r.key%21) * ms)
			if r.key == stuckKey {
				mu.Lock()
				refusals++
				mu.Unlock()
				return verdict
			}
			return ok
		})
		ctx, cancel := context.WithTimeout(t.Context(), c.lasts)
		defer cancel()
		go func() {
			time.Sleep(c.late)
			for range c.stuck {
				_ = p.Add(&rider{stuckKey}, func(pool.Result[*rider, int]) {})
			}
		}()
		if c.late == 0 {
			synctest.Wait()
		}
		var took []time.Duration
		for n := stuckKey + 1; ctx.Err() == nil; n++ {
			submitted := time.Now()
			_ = p.Submit(ctx, &rider{n}, func(r pool.Result[*rider, int]) {
				if r.Err == nil {
					mu.Lock()
					took = append(took, r.Finished.Sub(submitted))
					mu.Unlock()
				}
			})
			time.Sleep(c.every)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(took)
		if done = len(took); done > 0 {
			p99 = took[(done-1)*99/100]
		}
	})
	return done, p99, refusals
}

func TestAJobThatIsAlwaysRefusedStopsNoOther(t *testing.T) {
	const lasts = 8 * time.Second // in which 10,000 others are done where none is refused
	full, _, _ := crowded{lasts: lasts}.run(t)
	for _, c := range []struct {
		crowded
		most int // of the others are lost
	}{
		{crowded{stuck: 1}, 6000}, // from the start, before the throttle knows anything
		{crowded{stuck: 1, late: 4 * time.Second}, 1000},
		{crowded{stuck: 1, retryAfter: 10 * time.Second}, 6000},
		{crowded{stuck: 20, late: 4 * time.Second}, 1000},
	} {
		c.lasts = lasts
		done, _, refusals := c.run(t)
		t.Logf("%+v: %d jobs of %d, %d refusals", c, done, full, refusals)
		if done < full-c.most {
			t.Errorf("%+v: %d jobs done, %d without those that are refused", c, done, full)
		}
	}
}

// The throttle has learned of the first refusals; after that a key that is refused costs the others nothing.
func TestAKeyThatIsRefusedForAnHourDelaysNoOther(t *testing.T) {
	for _, c := range []crowded{{stuck: 1, every: 500 * ms}, {stuck: 20, every: 50 * ms}} {
		c.late, c.lasts = 5*time.Second, time.Hour
		done, p99, refusals := c.run(t)
		t.Logf("%d stuck: %d others, p99 %v; %d refusals", c.stuck, done, p99, refusals)
		if want, most := int(c.lasts/c.every), 72*ms; p99 > most || done < want-100 {
			t.Errorf("%d jobs of other keys are done, 99 of 100 in %v, want %d and at most %v: 1.2 calls", done, p99, want, most)
		}
		if most := c.stuck * 150; refusals > most {
			t.Errorf("%d calls were refused in an hour, want at most %d", refusals, most)
		}
	}
}

// One job is refused for ever and others wait: at first it goes before them, as it may well be the server.
func TestNewJobsHaveEveryOtherAttemptWhenRetriesAreInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		p := riding(t, pool.Config{Size: 4, Law: spaced(t, time.Second)}, func(r *rider) pool.Verdict {
			order = append(order, fmt.Sprint(r.key))
			if r.key == stuckKey && len(order) < 16 {
				return busy
			}
			return ok
		})
		for _, r := range ofKeys(stuckKey, 2, 3, 4, 5) {
			submit(t, p, r, func(pool.Result[*rider, int]) {})
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := strings.Join(order, ""), "11"+"21314151"; !strings.HasPrefix(got, want) {
			t.Errorf("order %s, want %s first", got, want)
		}
		if last := order[len(order)-1]; last != "1" || len(order) < 15 {
			t.Errorf("the job was not tried again: order %v", order)
		}
	})
}

// Half of all calls are refused, by chance: none of thousands of jobs is taken for one that is refused alone, and waits.
func TestRefusalsByChanceAreNoJobsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		ended := map[*rider]time.Time{}
		longest := time.Duration(0)
		p := riding(t, pool.Config{Size: 1, QueueLimit: 100, Law: &recorder{}}, func(r *rider) pool.Verdict {
			mu.Lock()
			if at, again := ended[r]; again {
				longest = max(longest, time.Since(at))
			}
			mu.Unlock()
			time.Sleep(ms)
			mu.Lock()
			defer mu.Unlock()
			if ended[r] = time.Now(); rnd.IntN(2) == 0 {
				return busy
			}
			return ok
		})
		for n := range 5000 {
			submit(t, p, &rider{n}, func(r pool.Result[*rider, int]) {
				mu.Lock()
				defer mu.Unlock()
				delete(ended, r.In)
			})
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if longest > 500*ms {
			t.Errorf("a job that was refused waited %v for its next attempt", longest)
		}
	})
}

// A call that weighs more than those that get through is refused because there is no room for it: the law must learn.
func TestALightCallDoesNotContradictAHeavyOne(t *testing.T) {
	for _, c := range []struct {
		weight heavy
		alone  bool
	}{{1000, false}, {15, true}} {
		synctest.Test(t, func(t *testing.T) {
			law := &counting{}
			p := running(t, pool.Config{Size: 8, Law: law}, func(_ context.Context, h heavy, _ pool.Attempt) (int, pool.Verdict) {
				time.Sleep(10 * ms)
				if h == c.weight {
					return 0, busy
				}
				return 0, ok
			})
			_ = p.Add(c.weight, func(pool.Result[heavy, int]) {})
			for range 2000 {
				_ = p.Add(heavy(10), func(pool.Result[heavy, int]) {})
				time.Sleep(5 * ms)
			}
			if refused := law.rejected.Load(); c.alone != (refused < 10) || !c.alone && refused < 900 {
				t.Errorf("weight %d: the law learned of %d refusals in 10s", c.weight, refused)
			}
		})
	}
}

// counting is a law without a limit that counts the refusals it learns of.
type counting struct {
	recorder
	rejected atomic.Int64
}

func (c *counting) Rejected(time.Time, aimd.Ticket, aimd.Hint) { c.rejected.Add(1) }
