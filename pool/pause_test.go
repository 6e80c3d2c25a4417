package pool_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// account is a call to a server whose key is bad until it is fixed. An attempt at a job that nobody wants any more is
// not made.
type account struct {
	took time.Duration

	mu       sync.Mutex
	j        *journal
	fixed    bool
	unwanted []int
}

// change changes what later calls find.
func (a *account) change(fixed bool, unwanted ...int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fixed, a.unwanted = fixed, unwanted
}

func (a *account) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.j.note(format, args...)
}

func (a *account) check(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.j.check(t, want...)
}

func (a *account) call(_ context.Context, in int, at pool.Attempt) (int, pool.Verdict) {
	a.mu.Lock()
	unwanted := slices.Contains(a.unwanted, in)
	a.mu.Unlock()
	if unwanted {
		return 0, pool.Verdict{Class: pool.Cancelled, Err: context.Canceled, Unsent: true}
	}
	a.note("job %d, probe %v", in, at.Probe)
	time.Sleep(a.took)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.fixed {
		return 0, badKey
	}
	return in, ok
}

func (a *account) running(t *testing.T, cfg pool.Config) *pool.Pool[int, int] {
	t.Helper()
	p := a.pool(t, cfg)
	run(t, p)
	return p
}

// pool returns one that does not run yet.
func (a *account) pool(t *testing.T, cfg pool.Config) *pool.Pool[int, int] {
	t.Helper()
	a.j = &journal{begin: time.Now()}
	cfg.OnPause = func(pool.Pause) { a.note("pause") }
	cfg.OnResume = func(pool.Pause) { a.note("resume") }
	return newPool(t, cfg, a.call)
}

func (a *account) submit(t *testing.T, p *pool.Pool[int, int], ins ...int) {
	t.Helper()
	for _, in := range ins {
		submit(t, p, in, func(r result) {
			if handedBack(r) {
				a.note("job %d handed back", r.In)
			} else {
				a.note("job %d done: %v", r.In, r.Err)
			}
		})
		synctest.Wait()
	}
}

// The job that met the error goes to somebody else while its probe is on its way: nobody proved that the error is gone,
// so the next in line finds out, at once.
func TestAProbeThatIsCutOffDoesNotResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a account
		p := a.running(t, pool.Config{Size: 2})
		a.submit(t, p, 0, 1, 2)
		a.change(false, 0, 1)
		time.Sleep(time.Minute + time.Second)
		if got := p.Stats(); reasonOf(got) != "invalid key" || got.Waiting != 1 {
			t.Errorf("after the probe: %+v", got)
		}
		a.change(true)
		time.Sleep(time.Minute)
		a.check(t,
			"0s job 0, probe false",
			"0s pause",
			"1m0s job 0 handed back",
			"1m0s job 1 handed back",
			"1m0s job 2, probe true",
			"2m0s job 2, probe true",
			"2m0s resume",
			"2m0s job 2 done: <nil>",
		)
	})
}

// The sent probe of a recalled job counts all the same.
func TestAProbeInFlightIsNotRecalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := account{took: time.Second}
		p := a.running(t, pool.Config{Size: 1})
		a.submit(t, p, 0, 1)
		time.Sleep(time.Minute + time.Second + 500*ms)
		a.change(true)
		p.Recall(func(int) bool { return true })
		time.Sleep(time.Minute)
		a.check(t,
			"0s job 0, probe false",
			"1s pause",
			"1m1s job 0, probe true",
			"1m1.5s job 1 handed back",
			"1m2s resume",
			"1m2s job 0 done: <nil>",
		)
	})
}

// Everything that waits can be recalled, and the pool without jobs stays paused: the next one that comes probes, as
// soon as the probe is due.
func TestAPauseBelongsToNoJob(t *testing.T) {
	for _, test := range []struct {
		name    string
		comes   time.Duration
		probe   string
		waiting int
	}{
		{"before the probe is due", 20 * time.Second, "1m0s", 1},
		{"after that", 90 * time.Second, "1m30s", 0},
	} {
		bubble(t, test.name, func(t *testing.T) {
			var a account
			p := a.running(t, pool.Config{Size: 3})
			a.submit(t, p, 0, 1, 2)
			time.Sleep(10 * time.Second)
			p.Recall(func(int) bool { return true })
			a.change(true)
			time.Sleep(test.comes - 10*time.Second)
			if got := p.Stats(); reasonOf(got) == "" || got.Waiting != 0 {
				t.Errorf("without jobs: %+v", got)
			}
			a.submit(t, p, 3)
			if got := p.Stats().Waiting; got != test.waiting {
				t.Errorf("%d jobs wait, want %d", got, test.waiting)
			}
			time.Sleep(time.Minute)
			a.check(t,
				"0s job 0, probe false",
				"0s pause",
				"10s job 1 handed back",
				"10s job 2 handed back",
				"10s job 0 handed back",
				test.probe+" job 3, probe true",
				test.probe+" resume",
				test.probe+" job 3 done: <nil>",
			)
		})
	}
}

// A job that the server asked to wait probes when it may, where there is no other.
func TestADelayedJobProbesWhenItsWaitIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		p := running(t, pool.Config{Size: 2, RowTimeout: 10 * time.Second}, func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			switch {
			case in == 1:
				time.Sleep(time.Second)
				return 0, badKey
			case a.Number == 1:
				return 0, withWait(busy, 5*time.Minute)
			default:
				return 0, ok
			}
		})
		var at time.Duration
		submit(t, p, 0, func(r result) {
			if at = time.Since(begin); r.Err != nil {
				t.Error(r.Err)
			}
		})
		submit(t, p, 1, func(result) {})
		time.Sleep(2 * time.Second)
		p.Recall(func(in int) bool { return in == 1 })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if at != 5*time.Minute || reasonOf(p.Stats()) != "" {
			t.Errorf("the job was done after %v, want 5m: %+v", at, p.Stats())
		}
	})
}

// Time stands still for a job that starts as the probe, too.
func TestANewJobThatProbesHasItsWholeRowTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pool.Config{Size: 2, RowTimeout: 30 * time.Second}
		p := running(t, cfg, func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			if in == 0 || a.Number < 3 {
				return 0, badKey
			}
			return 0, busy
		})
		submit(t, p, 0, func(result) {})
		synctest.Wait()
		submit(t, p, 1, func(r result) {
			if took := r.Finished.Sub(r.Started); !errors.Is(r.Err, pool.ErrRowTimeout) || took != 2*time.Minute+cfg.RowTimeout {
				t.Errorf("%v after %v, want it to have %v of the time without pauses", r.Err, took, cfg.RowTimeout)
			}
		})
		p.Recall(func(in int) bool { return in == 0 })
		time.Sleep(10 * time.Minute)
		if got := p.Stats(); got.Waiting != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A fallback proves nothing about the first server's key: while a job waits that asks the first server, that one
// probes.
func TestTheFirstServerIsProbedThoughAnOlderJobWaitsForAFallback(t *testing.T) {
	for name, recalled := range map[string]bool{"with a job for the first": false, "without": true} {
		bubble(t, name, func(t *testing.T) {
			var probes []int
			cfg := fallbacks(2, 1)
			p := running(t, cfg, func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				if a.Probe {
					probes = append(probes, 10*in+a.Server)
				}
				switch {
				case in == 0 && a.Server == 0:
					return 0, reset
				case in == 0 && a.CapacityRetries == 0:
					return 0, withWait(busy, 30*time.Second)
				case in == 0:
					return 0, ok
				default:
					time.Sleep(time.Second)
					return 0, badKey
				}
			})
			submit(t, p, 0, func(result) {})
			submit(t, p, 1, func(result) {})
			time.Sleep(2 * time.Second)
			want := []int{10}
			if recalled {
				p.Recall(func(in int) bool { return in == 1 })
				want = []int{1}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := reasonOf(p.Stats()) != ""; !slices.Equal(probes, want) || got == recalled {
				t.Errorf("probes %v, want %v; paused: %v", probes, want, got)
			}
		})
	}
}

// Where probes cost nothing, for they reach no server, they go on longer as often.
func TestProbesThatReachNoServerGoOnAsOften(t *testing.T) {
	for _, tc := range []struct {
		name    string
		verdict pool.Verdict
		calls   int
		late    time.Duration
	}{
		{"refused", refused, 4 + 10 + 120, 1000 * ms},
		{"sick", sick, 4 + 10 + 60, 5 * time.Second},
	} {
		bubble(t, tc.name, func(t *testing.T) {
			const from, back = 10 * time.Second, 130 * time.Second
			w := world{took: time.Second, outages: []outage{{from, back, tc.verdict}}}
			p := w.running(t, pool.Config{Size: 4})
			batch(t, p, 100)
			if n := len(w.during(from, back)); n > tc.calls {
				t.Errorf("%d calls in the outage, want at most %d", n, tc.calls)
			}
			if late := w.during(back, time.Hour)[0].at - back; late > tc.late {
				t.Errorf("the first call after it goes %v late, want at most %v", late, tc.late)
			}
		})
	}
}
