package pool_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

var (
	unknownParameter = pool.Verdict{Class: pool.Permanent, Alike: "400 unknown_parameter", Err: errBad}
	wrongSchema      = pool.Verdict{Class: pool.Transient, Alike: "schema_validation_failed", Err: errBad}
	loginPage        = pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Alike: "html", Err: errBad}
	short            = pool.Verdict{Class: pool.Transient, Origin: pool.OfHost, Err: syscall.EMFILE}
	tooLong          = pool.Verdict{Class: pool.Permanent, Err: errors.New("context length exceeded")}
)

// The same verdict about every job before any success is that of the settings: the jobs that ran into it are held, and
// go when somebody has corrected the settings.
func TestWrongSettingsCostNoJob(t *testing.T) {
	for name, verdict := range map[string]pool.Verdict{"400": unknownParameter, "schema": wrongSchema, "login page": loginPage} {
		for _, size := range []int{1, 4, 32} {
			bubble(t, name, func(t *testing.T) {
				w := world{took: time.Second, outages: []outage{{0, 150 * time.Second, verdict}}}
				p := w.running(t, pool.Config{Size: size})
				results := batch(t, p, 10*size)
				if jobs := failed(results); jobs != nil {
					t.Errorf("jobs %v failed", jobs)
				}
				// Those that showed it, others that were in flight, and a probe each minute. One at a time each
				// job has all of its attempts.
				most := size + 5 + 2
				if size == 1 {
					most = 5*3 + 2
				}
				if n := len(w.during(0, 150*time.Second)); n > most {
					t.Errorf("%d calls, want at most %d", n, most)
				}
				if want := []string{"settings"}; !slices.Equal(w.pause, want) {
					t.Errorf("pauses %v, want %v", w.pause, want)
				}
			})
		}
	}
}

func TestFewJobsOrDifferentVerdictsAreNotTheSettings(t *testing.T) {
	for _, test := range []struct {
		name   string
		jobs   int
		fail   bool
		poison func(in int) pool.Verdict
		fails  int
	}{
		{"few jobs", 4, false, func(int) pool.Verdict { return unknownParameter }, 4},
		{"different verdicts", 20, false, func(in int) pool.Verdict {
			return []pool.Verdict{unknownParameter, {Class: pool.Permanent, Alike: "422", Err: errBad}}[in%2]
		}, 20},
		{"about the job's content", 20, false, func(int) pool.Verdict { return tooLong }, 20},
		{"not asked for", 60, true, func(int) pool.Verdict { return unknownParameter }, 60},
	} {
		bubble(t, test.name, func(t *testing.T) {
			w := world{took: time.Second, poison: map[int]pool.Verdict{}}
			for in := range test.jobs {
				w.poison[in] = test.poison(in)
			}
			p := w.running(t, pool.Config{Size: 2, FailOnFatal: test.fail})
			if n := len(failed(batch(t, p, test.jobs))); n != test.fails {
				t.Errorf("%d jobs failed, want %d", n, test.fails)
			}
			if len(w.pause) > 0 || len(w.calls) != test.jobs {
				t.Errorf("%d calls, pauses %v", len(w.calls), w.pause)
			}
		})
	}
}

// Refusals are faster than successes: when the first calls that come back are all refused alike, those in flight are
// waited for.
func TestFastRefusalsBeforeTheFirstSuccessAreNotTheSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: 10 * time.Second, poison: map[int]pool.Verdict{}}
		for in := range 8 {
			w.poison[3*in] = unknownParameter
		}
		p := w.running(t, pool.Config{Size: 16})
		if n := len(failed(batch(t, p, 100))); n != 8 {
			t.Errorf("%d jobs failed, want 8", n)
		}
		if len(w.pause) > 0 {
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// After a success a job's 400 is its own, until it is the verdict about everybody.
func TestAfterASuccessFiftyVerdictsAlikeAreTheSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, poison: map[int]pool.Verdict{5: unknownParameter}}
		for in := 20; in < 69; in++ { // 49 of them, and a success behind
			w.poison[in] = unknownParameter
		}
		for in := 100; in < 200; in++ {
			w.poison[in] = unknownParameter
		}
		cfg := pool.Config{Size: 4, QueueLimit: 300}
		p := w.running(t, cfg)
		var lost []int
		for in := range 300 {
			submit(t, p, in, func(r result) {
				if r.Err != nil {
					lost = append(lost, r.In)
				}
			})
		}
		time.Sleep(2 * time.Hour) // the probes find others that are good
		synctest.Wait()
		if len(lost) != 1+49+100 || slices.Contains(lost, 99) {
			t.Errorf("%d jobs failed", len(lost))
		}
		if want := []string{"settings"}; !slices.Equal(w.pause[:1], want) {
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// A machine that has no descriptor left makes as many calls at a time as it can, and loses none.
func TestAShortageBoundsTheCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inFlight gauge
		inner := inFlight.watch(sleeper(time.Second))
		refusals := 0
		var reported []error
		begin := time.Now()
		cfg := pool.Config{Size: 200, OnShortage: func(err error) { reported = append(reported, err) }, OnPause: func(p pool.Pause) { t.Errorf("paused: %+v", p) }}
		p := running(t, cfg, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			inFlight.mu.Lock()
			full := inFlight.now >= 80 && time.Since(begin) < 20*time.Second
			if full {
				refusals++
			}
			inFlight.mu.Unlock()
			if full {
				return 0, short
			}
			return inner(ctx, in, a)
		})
		results := batch(t, p, 4000)
		for _, r := range results {
			if r.Err != nil {
				t.Fatalf("job %d: %v after %d attempts", r.In, r.Err, r.Attempts)
			}
		}
		if refusals > 120+10 { // at first, and one each 5 s
			t.Errorf("%d calls found no descriptor", refusals)
		}
		if took := time.Since(begin); took > 4000/80*time.Second+3*time.Second {
			t.Errorf("took %v", took)
		}
		if len(reported) != 1 || !errors.Is(reported[0], syscall.EMFILE) {
			t.Errorf("reported %v, want one shortage", reported)
		}
		if s := p.Stats(); !errors.Is(s.Shortage, syscall.EMFILE) {
			t.Errorf("the statistics report %v", s.Shortage)
		}
	})
}

// Where nothing is in flight, nothing will be given back: the pool pauses and probes.
func TestAShortageOfEverythingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unreachable := pool.Verdict{Class: pool.Transient, Origin: pool.OfHost, Err: syscall.ENETUNREACH}
		w := world{took: time.Second, outages: []outage{{10 * time.Second, 70 * time.Second, unreachable}}}
		p := w.running(t, pool.Config{Size: 4})
		if jobs := failed(batch(t, p, 200)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		if want := []string{"shortage"}; !slices.Equal(w.pause, want) {
			t.Errorf("pauses %v, want %v", w.pause, want)
		}
		if n := len(w.during(11*time.Second, 70*time.Second)); n > 50 {
			t.Errorf("%d probes", n)
		}
		if took := time.Since(w.begin); took > (10+60+2+45)*time.Second {
			t.Errorf("took %v: a shortage that is over bounds nothing", took)
		}
	})
}

// A shortage is over although no call more than the room for them is wanted any more.
func TestAShortageEndsWithFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var mu sync.Mutex
		p := running(t, pool.Config{Size: 64}, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			mu.Lock()
			calls++
			first := calls == 40
			mu.Unlock()
			if first {
				return 0, short
			}
			return sleeper(time.Second)(ctx, in, a)
		})
		batch(t, p, 100)
		if p.Stats().Shortage == nil {
			t.Error("there was no shortage")
		}
		time.Sleep(64 * 5 * time.Second)
		synctest.Wait()
		if err := p.Stats().Shortage; err != nil {
			t.Errorf("five minutes later: %v", err)
		}
	})
}
