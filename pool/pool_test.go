package pool_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

func TestBatchKeepsInputOrderUnderRandomLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		latencies := make([]time.Duration, 100)
		var work time.Duration
		for i := range latencies {
			latencies[i] = time.Duration(50+random.IntN(451)) * ms
			work += latencies[i]
		}
		var inFlight gauge
		p := running(t, pool.Config{Size: 10}, inFlight.watch(
			func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
				time.Sleep(latencies[in])
				return 2 * in, ok
			}))
		begin := time.Now()
		results := batch(t, p, len(latencies))
		for i, r := range results {
			if r.In != i || r.Out != 2*i || r.Err != nil || r.Class != pool.OK {
				t.Fatalf("result %d is of job %d: %d, %v", i, r.In, r.Out, r.Err)
			}
		}
		if took, most := time.Since(begin), work/10+500*ms; took < work/10 || took > most {
			t.Errorf("took %v, want between %v and %v", took, work/10, most)
		}
		if most, stats := inFlight.most, p.Stats(); most != 10 || stats.MaxConcurrent != 10 {
			t.Errorf("%d calls were in flight at once, the statistics report %d, want 10", most, stats.MaxConcurrent)
		}
		if got := p.Stats().ExecTime; got != work {
			t.Errorf("ExecTime is %v, want %v", got, work)
		}
		if results := batch(t, p, 0); len(results) != 0 {
			t.Errorf("an empty batch has %d results", len(results))
		}
	})
}

func TestSubmitBlocksWhileTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1, QueueLimit: 2}, sleeper(time.Second))
		begin := time.Now()
		ignore := func(result) {}
		submit(t, p, 0, ignore) // in flight, once the pool has seen it
		synctest.Wait()
		submit(t, p, 1, ignore)
		submit(t, p, 2, ignore)
		if took := time.Since(begin); took != 0 {
			t.Fatalf("submitting two jobs to a queue of two took %v", took)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*ms, errBad)
		defer cancel()
		if err := p.Submit(ctx, 3, ignore); !errors.Is(err, errBad) {
			t.Errorf("submitting to a full queue: %v, want the context's cause", err)
		}
		if got := p.Stats(); got.Waiting != 2 || got.InFlight != 1 {
			t.Errorf("%d jobs wait and %d are in flight, want 2 and 1", got.Waiting, got.InFlight)
		}
		submit(t, p, 4, ignore)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("there was room after %v, want 1s", took)
		}
	})
}

// TestRetriesTakeUpTheQueue: jobs in backoff count as waiting, so that their number is bounded too.
func TestRetriesTakeUpTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later := pool.Verdict{Class: pool.Capacity, Err: errBusy, Hint: aimd.Hint{RetryAfter: time.Minute}}
		p := running(t, pool.Config{Size: 4, QueueLimit: 2}, script(later))
		begin := time.Now()
		for i := range 4 { // all are in flight before the first is rejected
			submit(t, p, i, func(result) {})
			synctest.Wait()
		}
		time.Sleep(2 * ms)
		if got, room := p.Stats().Waiting, p.Room(); got != 4 || room > 0 {
			t.Fatalf("%d jobs wait, with room for %d, want 4 and none: retries may pass the limit", got, room)
		}
		submit(t, p, 4, func(result) {})
		if took := time.Since(begin); took < time.Minute {
			t.Errorf("there was room after %v, want a minute", took)
		}
	})
}

func TestManyGoroutinesMaySubmitAndAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 4, QueueLimit: 3}, sleeper(ms))
		for range 8 {
			go func() {
				for i := range 50 {
					if err := p.Submit(t.Context(), i, func(result) {}); err != nil {
						t.Error(err)
					}
					p.Stats()
				}
			}()
		}
		time.Sleep(time.Minute)
		if got := p.Stats(); got.Successes != 400 || got.Waiting != 0 {
			t.Errorf("400 jobs were submitted: %+v", got)
		}
	})
}

func TestPanicFailsItsJobAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Of size 1, so that it hangs if it counts on a worker that is gone.
		p := running(t, pool.Config{Size: 1}, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			switch in {
			case 1:
				panic("boom")
			case 2:
				panic(errBad)
			case 3:
				runtime.Goexit()
			}
			return sleeper(ms)(ctx, in, a)
		})
		results := batch(t, p, 8)
		for i, want := range map[int]string{1: "call panicked: boom", 2: "call panicked: bad request", 3: "call ended its goroutine"} {
			r := results[i]
			failure, is := errors.AsType[*pool.PanicError](r.Err)
			if !is || r.Class != pool.Permanent || r.Attempts != 1 || failure.Error() != want {
				t.Errorf("job %d: %v after %d attempts, class %v, want %q", i, r.Err, r.Attempts, r.Class, want)
				continue
			}
			if !strings.Contains(string(failure.Stack), "TestPanicFailsItsJobAlone") {
				t.Errorf("job %d: the stack does not show the call:\n%s", i, failure.Stack)
			}
		}
		if !errors.Is(results[2].Err, errBad) {
			t.Errorf("%v does not wrap the error that the call panicked with", results[2].Err)
		}
		for _, i := range []int{0, 4, 5, 6, 7} {
			if results[i].Err != nil {
				t.Errorf("job %d: %v", i, results[i].Err)
			}
		}
	})
}

func TestVerdictsOfAFaultyFuncStillEndTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verdicts := []pool.Verdict{{Class: pool.Permanent}, {Class: 77, Err: errBad}, {Class: pool.Cancelled}}
		p := running(t, pool.Config{Size: 1}, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
			return in, verdicts[in]
		})
		for i, want := range []string{
			"call failed without a reason",
			"unknown class(77): bad request",
			"job handed back unfinished: call failed without a reason",
		} {
			if r := batch(t, p, 3)[i]; r.Err == nil || r.Err.Error() != want {
				t.Errorf("job %d: %v, want %q", i, r.Err, want)
			}
		}
	})
}

func TestResultTellsItsInstants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 1, Law: spaced(t, 10*ms), Rand: func() float64 { return 1 }}, script(reset))
		begin := time.Now()
		r := batch(t, p, 2)[1]
		// The first job is attempted at 0 and, after a millisecond and a wait of 2 s, again; then the second.
		first := begin.Add(2001*ms + 10*ms)
		if !r.Queued.Equal(begin) || !r.Started.Equal(first) || !r.Finished.Equal(first.Add(2002*ms)) {
			t.Errorf("queued after %v, started after %v, finished after %v",
				r.Queued.Sub(begin), r.Started.Sub(begin), r.Finished.Sub(begin))
		}
		if r.Attempts != 2 || r.CapacityRetries != 0 || r.Stats.Successes != 2 || r.Stats.InFlight != 0 {
			t.Errorf("result %+v", r)
		}
	})
}

func TestAttemptTellsItsFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts []pool.Attempt
		begin := time.Now()
		p := running(t, pool.Config{Size: 1, Rand: func() float64 { return 0 }},
			func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				attempts = append(attempts, a)
				return script(busy, reset)(ctx, in, a)
			})
		batch(t, p, 1)
		want := []pool.Attempt{
			{Number: 1, Queued: begin, Dispatched: begin},
			{Number: 2, CapacityRetries: 1, DispatchDelay: 50 * ms, Throttled: 49 * ms, Queued: begin, Dispatched: begin.Add(50 * ms)},
			{Number: 3, CapacityRetries: 1, Failures: 1, Throttled: 49 * ms, Queued: begin, Dispatched: begin.Add(51 * ms)},
		}
		if len(attempts) != len(want) {
			t.Fatalf("%d attempts, want %d", len(attempts), len(want))
		}
		for i := range want {
			got := attempts[i]
			if !got.Queued.Equal(want[i].Queued) || !got.Dispatched.Equal(want[i].Dispatched) {
				t.Errorf("attempt %d was queued after %v and dispatched after %v", i+1, got.Queued.Sub(begin), got.Dispatched.Sub(begin))
			}
			got.Queued, got.Dispatched = want[i].Queued, want[i].Dispatched
			if got != want[i] {
				t.Errorf("attempt %d: %+v, want %+v", i+1, got, want[i])
			}
		}
	})
}

// ThrottleTime grows while a free slot waits for the law, and FullTime while a job waits for a slot.
func TestThrottledAndFullAreDifferentTimes(t *testing.T) {
	for _, test := range []struct {
		name            string
		size            int
		every           time.Duration // between two dispatches
		took            time.Duration
		throttled, full time.Duration
	}{
		{"slots are free, the law says wait", 10, 100 * ms, time.Second, 400 * ms, 0},
		{"half of the time", 1, 100 * ms, 50 * ms, 4 * 50 * ms, 4 * 50 * ms},
		{"the law would, but no slot is free: nobody waits during the last call", 1, ms, time.Second, 0, 4 * time.Second},
		{"two at a time, the second a millisecond later", 2, ms, time.Second, ms, 1999 * ms},
		{"a slot for each", 5, ms, time.Second, 4 * ms, 0},
	} {
		bubble(t, test.name, func(t *testing.T) {
			p := running(t, pool.Config{Size: test.size, Law: spaced(t, test.every)}, sleeper(test.took))
			last := batch(t, p, 5)[4].Stats
			if got := p.Stats(); got.ThrottleTime != test.throttled || got.FullTime != test.full || last.ThrottleTime != test.throttled {
				t.Errorf("throttled for %v (%v by the last result), want %v; full for %v, want %v",
					got.ThrottleTime, last.ThrottleTime, test.throttled, got.FullTime, test.full)
			}
		})
	}
}

func TestStatsAreCurrentWhileThePoolWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 3, Law: spaced(t, time.Minute)}, sleeper(time.Hour))
		if got := p.Stats(); got != (pool.Stats{PoolSize: 3}) {
			t.Errorf("at first: %+v", got)
		}
		submit(t, p, 0, func(result) {})
		submit(t, p, 1, func(result) {})
		time.Sleep(10 * time.Second)
		want := pool.Stats{PoolSize: 3, Dispatched: 1, MaxConcurrent: 1, InFlight: 1, Waiting: 1, ThrottleTime: 10 * time.Second}
		if got := p.Stats(); got != want {
			t.Errorf("after 10 s: %+v, want %+v", got, want)
		}
	})
}

func TestDoneMayAskAndDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, pool.Config{Size: 1}, sleeper(ms))
		submit(t, p, 0, func(result) {
			p.Stats()
			p.Drain()
		})
		if err := p.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
