package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// journal writes down what happens and after how long. One goroutine at a time may use it.
type journal struct {
	begin time.Time
	lines []string
}

func (j *journal) note(format string, args ...any) {
	j.lines = append(j.lines, fmt.Sprintf("%v ", time.Since(j.begin))+fmt.Sprintf(format, args...))
}

func (j *journal) check(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(j.lines, want) {
		t.Errorf("what happened:\n%s\nwant:\n%s", strings.Join(j.lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestFatalErrorPausesUntilAProbeSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := journal{begin: time.Now()}
		fixed := j.begin.Add(150 * time.Second)
		p := running(t, pool.Config{
			Size:     1,
			OnPause:  func(p pool.Pause) { j.note("pause: %v", p.Err) },
			OnResume: func(pool.Pause) { j.note("resume") },
		}, func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			j.note("job %d, attempt %d, probe %v", in, a.Number, a.Probe)
			if in == 1 && time.Now().Before(fixed) {
				return 0, badKey
			}
			return in, ok
		})
		time.AfterFunc(59*time.Second, func() {
			if got := p.Stats(); reasonOf(got) != "invalid key" || got.Waiting != 2 {
				t.Errorf("paused: %+v", got)
			}
		})
		results := batch(t, p, 3)
		j.check(t,
			"0s job 0, attempt 1, probe false",
			"0s job 1, attempt 1, probe false",
			"0s pause: invalid key",
			"1m0s job 1, attempt 2, probe true",
			"2m0s job 1, attempt 3, probe true",
			"3m0s job 1, attempt 4, probe true",
			"3m0s resume",
			"3m0s job 2, attempt 1, probe false",
		)
		if r := results[1]; r.Err != nil || r.Attempts != 4 {
			t.Errorf("the job that met the fatal error: %v after %d attempts", r.Err, r.Attempts)
		}
		if got := p.Stats(); reasonOf(got) != "" || got.ThrottleTime != 0 {
			t.Errorf("after it all: %+v", got)
		}
	})
}

func TestAnyVerdictButFatalResumes(t *testing.T) {
	for _, verdict := range []pool.Verdict{ok, busy, reset, bad} {
		bubble(t, verdict.Class.String(), func(t *testing.T) {
			resumed := 0
			p := running(t, pool.Config{Size: 2, OnResume: func(pool.Pause) { resumed++ }}, script(badKey, verdict))
			r := batch(t, p, 1)[0]
			if resumed != 1 {
				t.Errorf("resumed %d times", resumed)
			}
			if final := verdict.Class == pool.Permanent; final != (r.Err != nil) {
				t.Errorf("result %v", r.Err)
			}
		})
	}
}

// TestPauseHoldsAllButTheCallsInFlight: five calls go out, and the first to come back is fatal. The others finish, one
// with the same error, and none of their verdicts ends the pause or puts off the probe, which is at the older of the
// two.
func TestPauseHoldsAllButTheCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		p := running(t, pool.Config{Size: 5}, func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			time.Sleep(time.Duration(5-min(in, 4)) * time.Second) // the youngest is back first
			if a.Number == 1 && (in == 2 || in == 4) {
				return 0, badKey
			}
			return in, ok
		})
		for i := range 10 {
			submit(t, p, i, func(result) {})
		}
		for _, test := range []struct {
			at                           time.Duration
			inFlight, waiting, successes int
			paused                       bool
		}{
			{500 * ms, 5, 5, 0, false},
			{1500 * ms, 4, 6, 0, true},
			{5500 * ms, 0, 7, 3, true},
			{60500 * ms, 0, 7, 3, true},
			{61500 * ms, 1, 6, 3, true}, // the probe, and nothing but the probe
			{64500 * ms, 5, 1, 4, false},
			{68 * time.Second, 0, 0, 10, false},
		} {
			time.Sleep(test.at - time.Since(begin))
			got := p.Stats()
			if got.InFlight != test.inFlight || got.Waiting != test.waiting || int(got.Successes) != test.successes || (reasonOf(got) != "") != test.paused {
				t.Errorf("after %v: %+v,\nwant %+v", test.at, got, test)
			}
		}
	})
}

func TestProbesGoThroughThePacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := journal{begin: time.Now()}
		p := running(t, pool.Config{Size: 1, Law: spaced(t, 90*time.Second)},
			func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				j.note("attempt %d", a.Number)
				return script(badKey, badKey)(ctx, in, a)
			})
		batch(t, p, 1)
		j.check(t, "0s attempt 1", "1m30s attempt 2", "3m0s attempt 3")
	})
}

// A job is past its deadline when its call ends, and begins a pause: it waits for the end of that, as the settings are
// no fault of its own, and probes.
func TestAJobThatPausesThePoolLateIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1, RowTimeout: time.Second}, func(_ context.Context, _ int, a pool.Attempt) (int, pool.Verdict) {
			if a.Number == 1 {
				time.Sleep(3 * time.Second)
				return 0, badKey
			}
			return 0, ok
		})
		if r := batch(t, p, 1)[0]; r.Err != nil {
			t.Errorf("the job fails: %v", r.Err)
		}
	})
}

// TestRowTimeoutLeavesOutPauses: three jobs start at 0 and may wait for 10 s. The oldest pauses the pool from second 4
// to minute 1:04; so the others give up at 1:10, wherever they wait. A job that starts after the pause has its own 10
// s.
func TestRowTimeoutLeavesOutPauses(t *testing.T) {
	for _, test := range []struct {
		name  string
		retry time.Duration // the hint
		calls int           // 0: any number
	}{
		{"ready", 0, 0},
		{"delayed", time.Hour, 1},
		{"delayed into the pause", 30 * time.Second, 2},
	} {
		bubble(t, test.name, func(t *testing.T) {
			later := busy
			later.Hint.RetryAfter = test.retry
			p := running(t, pool.Config{Size: 3, RowTimeout: 10 * time.Second},
				func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
					switch {
					case in > 0:
						time.Sleep(ms)
						return 0, later
					case a.Number == 1:
						time.Sleep(4 * time.Second)
						return 0, badKey
					default:
						return 0, ok
					}
				})
			check := func(r result, want time.Duration) {
				t.Helper()
				if took := r.Finished.Sub(r.Started); !errors.Is(r.Err, pool.ErrRowTimeout) || took.Round(5*ms) != want {
					t.Errorf("job %d: %v after %v, want a time-out after %v", r.In, r.Err, took, want)
				}
			}
			results := batch(t, p, 3)
			for _, r := range results[1:] {
				check(r, 70*time.Second)
				if test.calls > 0 && r.CapacityRetries != test.calls {
					t.Errorf("job %d was called %d times, want %d", r.In, r.CapacityRetries, test.calls)
				}
			}
			if results[0].Err != nil {
				t.Errorf("the job that paused the pool: %v", results[0].Err)
			}
			submit(t, p, 9, func(r result) { results[0] = r })
			time.Sleep(time.Minute)
			synctest.Wait()
			check(results[0], 10*time.Second)
		})
	}
}
