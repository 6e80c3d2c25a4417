package pool_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

// fallbacks is a pool's configuration with n fallbacks and no waits between transient attempts.
func fallbacks(size, n int) pool.Config {
	return pool.Config{Size: size, Fallbacks: make([]pool.Server, n), Retry: pool.RetryConfig{MaxAttempts: 2, BackoffFactor: 1}}
}

// withWait is v with a least wait.
func withWait(v pool.Verdict, wait time.Duration) pool.Verdict {
	v.Hint.RetryAfter = wait
	return v
}

// asked returns a call that answers as each server does, and the servers that were asked for each job, in order.
func asked(servers ...func(in int, a pool.Attempt) pool.Verdict) (call, map[int][]int) {
	order := map[int][]int{}
	return func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
		order[in] = append(order[in], a.Server)
		time.Sleep(ms)
		return a.Server, servers[a.Server](in, a)
	}, order
}

func always(v pool.Verdict) func(int, pool.Attempt) pool.Verdict {
	return func(int, pool.Attempt) pool.Verdict { return v }
}

func TestUsedUpAttemptsGoToTheNextServer(t *testing.T) {
	for _, test := range []struct {
		name    string
		servers []func(int, pool.Attempt) pool.Verdict
		asked   []int
		err     error
	}{
		{"the first answers", []func(int, pool.Attempt) pool.Verdict{always(ok), always(bad)}, []int{0}, nil},
		{"the second answers", []func(int, pool.Attempt) pool.Verdict{always(reset), always(ok)}, []int{0, 0, 1}, nil},
		{"each has attempts of its own", []func(int, pool.Attempt) pool.Verdict{always(reset), always(reset), always(ok)}, []int{0, 0, 1, 1, 2}, nil},
		{"nobody answers", []func(int, pool.Attempt) pool.Verdict{always(reset), always(reset)}, []int{0, 0, 1, 1}, errReset},
		{"permanent errors are final", []func(int, pool.Attempt) pool.Verdict{always(reset), always(bad), always(ok)}, []int{0, 0, 1}, errBad},
		{"a fatal error of a fallback does not pause", []func(int, pool.Attempt) pool.Verdict{always(reset), always(badKey), always(ok)}, []int{0, 0, 1, 2}, nil},
		{"nor does that of the last", []func(int, pool.Attempt) pool.Verdict{always(reset), always(badKey)}, []int{0, 0, 1}, errKey},
	} {
		bubble(t, test.name, func(t *testing.T) {
			cfg := fallbacks(1, len(test.servers)-1)
			cfg.OnPause = func(p pool.Pause) { t.Errorf("paused: %v", p.Err) }
			f, order := asked(test.servers...)
			p := running(t, cfg, f)
			r := batch(t, p, 1)[0]
			if !slices.Equal(order[0], test.asked) || !errors.Is(r.Err, test.err) || r.Attempts != len(test.asked) {
				t.Errorf("asked %v, %v after %d attempts; want %v and %v", order[0], r.Err, r.Attempts, test.asked, test.err)
			}
		})
	}
}

// TestFallbackKeepsTheAgeOfAJob: the oldest of three jobs fails at the first server and goes to the fallback ahead of
// those that have not started.
func TestFallbackKeepsTheAgeOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int
		p := running(t, fallbacks(1, 1), func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			order = append(order, 10*in+a.Server)
			if in == 0 && a.Server == 0 {
				return 0, withWait(reset, ms)
			}
			return 0, ok
		})
		batch(t, p, 3)
		if want := []int{0, 0, 1, 10, 20}; !slices.Equal(order, want) {
			t.Errorf("attempts %v, want %v", order, want)
		}
	})
}

func TestJobsPassAServerThatHasBeenWithoutCapacityForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		back := begin.Add(2 * time.Minute)
		cfg := fallbacks(4, 1)
		cfg.Law = spaced(t, time.Second)
		cfg.Fallbacks[0].Law = spaced(t, 100*ms)
		cfg.FallbackAfter = 30 * time.Second
		var mu sync.Mutex
		var atFirst, atFallback []time.Duration
		p := running(t, cfg, func(_ context.Context, _ int, a pool.Attempt) (int, pool.Verdict) {
			now := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			if a.Server == 1 {
				atFallback = append(atFallback, now)
				return 1, ok
			}
			atFirst = append(atFirst, now)
			if time.Now().Before(back) {
				return 0, busy
			}
			return 0, ok
		})
		results := batch(t, p, 1000)
		if first := atFallback[0]; first != 30*time.Second {
			t.Errorf("the fallback was asked first after %v, want 30s after the first capacity error", first)
		}
		if n := len(atFallback); n < 850 || n > 920 {
			t.Errorf("the fallback got %d of the jobs, want ten a second for 90s: its own law paces it", n)
		}
		probes := slices.IndexFunc(atFirst, func(d time.Duration) bool { return d >= 2*time.Minute })
		if probes < 110 || probes > 121 {
			t.Errorf("the first server was probed %d times in two minutes, want as often as its law allows", probes)
		}
		if last := atFallback[len(atFallback)-1]; last > 2*time.Minute+time.Second {
			t.Errorf("the fallback was still asked after %v: the first one had capacity again", last)
		}
		for i, r := range results {
			if r.Err != nil {
				t.Fatalf("job %d: %v", i, r.Err)
			}
		}
	})
}

func TestWithoutAnIntervalJobsWaitForTheFirstServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, order := asked(func(_ int, a pool.Attempt) pool.Verdict {
			if a.CapacityRetries < 100 {
				return busy
			}
			return ok
		}, always(bad))
		p := running(t, fallbacks(2, 1), f)
		if r := batch(t, p, 1)[0]; r.Err != nil || slices.Max(order[0]) != 0 {
			t.Errorf("%v after %v, want capacity at the first server in the end", r.Err, order[0])
		}
	})
}

// TestALongWaitEndsAtTheFallback: the server asks for an hour, the job may leave after ten seconds.
func TestALongWaitEndsAtTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := fallbacks(1, 1)
		cfg.FallbackAfter = 10 * time.Second
		f, order := asked(always(withWait(busy, time.Hour)), always(ok))
		p := running(t, cfg, f)
		r := batch(t, p, 1)[0]
		if took := r.Finished.Sub(r.Started).Round(5 * ms); r.Err != nil || took != 10*time.Second || !slices.Equal(order[0], []int{0, 1}) {
			t.Errorf("%v after %v, asked %v", r.Err, took, order[0])
		}
	})
}

// TestAFallbackWithABadKeyIsPassedOver: while the first server has no capacity the fallback is tried, has a bad key,
// and is left alone for the probe interval; the jobs wait for the first server as if there were no fallback.
func TestAFallbackWithABadKeyIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		cfg := fallbacks(4, 1)
		cfg.FallbackAfter, cfg.ProbeInterval = 5*time.Second, time.Minute
		cfg.OnPause = func(p pool.Pause) { t.Errorf("paused: %v", p.Err) }
		var bads atomic.Int32
		p := running(t, cfg, func(_ context.Context, _ int, a pool.Attempt) (int, pool.Verdict) {
			switch {
			case a.Server == 1:
				bads.Add(1)
				return 0, badKey
			case time.Since(begin) < 3*time.Minute:
				return 0, busy
			default:
				return 0, ok
			}
		})
		for i, r := range batch(t, p, 20) {
			if r.Err != nil {
				t.Errorf("job %d: %v", i, r.Err)
			}
		}
		if n := bads.Load(); n < 2 || n > 12 {
			t.Errorf("the fallback with the bad key was asked %d times in three minutes", n)
		}
	})
}

func TestUnsentFatalPausesWhateverThePolicyAndCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fail := range []bool{false, true} {
			cfg := fallbacks(1, 1)
			cfg.FailOnFatal = fail
			paused := 0
			cfg.OnPause = func(pool.Pause) { paused++ }
			law, err := aimd.NewClassic(aimd.Default())
			if err != nil {
				t.Fatal(err)
			}
			cfg.Law = law
			calls := 0
			p := running(t, cfg, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
				if calls++; calls <= 3 {
					return 0, pool.Verdict{Class: pool.Fatal, Err: errKey, Unsent: true}
				}
				return in, ok
			})
			r := batch(t, p, 1)[0]
			if paused != 1 || r.Err != nil || r.Attempts != 1 || r.Stats.Dispatched != 1 || law.Stats().Successes != 1 {
				t.Errorf("fail %v: paused %d times, %v after %d attempts, the law saw %+v", fail, paused, r.Err, r.Attempts, law.Stats())
			}
		}
	})
}
