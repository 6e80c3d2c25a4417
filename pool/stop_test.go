package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// handedBack reports whether r is what becomes of a job that a stopping pool did not finish.
func handedBack(r result) bool {
	return errors.Is(r.Err, pool.ErrHandedBack) && r.Class == pool.Cancelled
}

// TestDrainFinishesTheCallsInFlightOnly has four jobs in flight when it drains, one in backoff and two in the queue.
func TestDrainFinishesTheCallsInFlightOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verdicts := []pool.Verdict{reset, ok, busy, reset, badKey, ok, ok}
		p := newPool(t, pool.Config{Size: 4, Rand: func() float64 { return 1 }},
			func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
				if in > 0 {
					time.Sleep(time.Second)
				}
				return in, verdicts[in]
			})
		results := make([]result, 7)
		for i := range results {
			submit(t, p, i, func(r result) { results[r.In] = r })
		}
		time.AfterFunc(500*ms, p.Drain)
		begin := time.Now()
		if err := p.Run(t.Context()); err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("drained after %v, want 1s: as soon as the calls end", took)
		}
		if r := results[1]; r.Err != nil || r.Out != 1 {
			t.Errorf("the call in flight gave %d, %v", r.Out, r.Err)
		}
		for i, attempts := range map[int]int{0: 1, 2: 0, 3: 1, 4: 1, 5: 0, 6: 0} {
			if r := results[i]; !handedBack(r) || r.Attempts != attempts {
				t.Errorf("job %d: %v after %d attempts, class %v; want it handed back after %d", i, r.Err, r.Attempts, r.Class, attempts)
			}
		}
		if err := p.Submit(t.Context(), 9, func(result) { t.Error("a job was taken after the end") }); !errors.Is(err, pool.ErrStopped) {
			t.Errorf("Submit after Drain: %v", err)
		}
		if got := p.Stats(); got.InFlight != 0 || got.Waiting != 0 || reasonOf(got) != "" {
			t.Errorf("after the end: %+v", got)
		}
	})
}

func TestDrainFailsAJobWhoseAttemptsAreUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry := pool.RetryConfig{MaxAttempts: 1, BackoffFactor: 1}
		p := newPool(t, pool.Config{Size: 1, Retry: retry}, script(reset))
		var r result
		submit(t, p, 0, func(got result) { r = got })
		time.AfterFunc(ms/2, p.Drain)
		if err := p.Run(t.Context()); err != nil || !errors.Is(r.Err, errReset) || r.Class != pool.Transient {
			t.Errorf("Run: %v; job: %v, class %v", err, r.Err, r.Class)
		}
	})
}

func TestDrainEndsAPause(t *testing.T) {
	for name, at := range map[string]time.Duration{"between probes": 30 * time.Second, "during a probe": 60 * time.Second} {
		bubble(t, name, func(t *testing.T) {
			p := newPool(t, pool.Config{Size: 2}, func(context.Context, int, pool.Attempt) (int, pool.Verdict) {
				time.Sleep(time.Second)
				return 0, badKey
			})
			var handed []int
			for i := range 3 {
				submit(t, p, i, func(r result) {
					if handedBack(r) {
						handed = append(handed, r.In)
					}
				})
			}
			time.AfterFunc(at+1500*ms, p.Drain)
			if err := p.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if slices.Sort(handed); !slices.Equal(handed, []int{0, 1, 2}) {
				t.Errorf("handed back: %v", handed)
			}
		})
	}
}

func TestHardStopCancelsCallsAndHandsEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errStop := errors.New("enough")
		ctx, stop := context.WithCancelCause(t.Context())
		p := newPool(t, pool.Config{Size: 3, QueueLimit: 4}, sleeper(time.Hour))
		count := 0
		for i := range 4 {
			submit(t, p, i, func(r result) {
				if count++; !handedBack(r) {
					t.Errorf("job %d: %v, class %v", r.In, r.Err, r.Class)
				}
			})
		}
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		blocked := make(chan error)
		go func() {
			for { // until the queue is full, and then until the end
				if err := p.Submit(context.Background(), 9, func(result) { count++ }); err != nil {
					blocked <- err
					return
				}
			}
		}()
		time.Sleep(time.Second)
		begin := time.Now()
		stop(errStop)
		if err := <-ended; !errors.Is(err, errStop) {
			t.Errorf("Run: %v, want the context's cause", err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("stopping took %v", took)
		}
		if err := <-blocked; !errors.Is(err, pool.ErrStopped) {
			t.Errorf("Submit on a full queue: %v", err)
		}
		if count != 7 { // three in flight, four in the queue
			t.Errorf("%d jobs were done, want 7", count)
		}
	})
}

func TestHardStopWaitsForACallThatIgnoresIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		p := newPool(t, pool.Config{Size: 1}, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
			time.Sleep(time.Minute)
			return in, ok
		})
		var r result
		submit(t, p, 5, func(got result) { r = got })
		begin := time.Now()
		if err := p.Run(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Minute {
			t.Errorf("Run: %v after %v", err, time.Since(begin))
		}
		if r.Err != nil || r.Out != 5 {
			t.Errorf("a call that succeeds nevertheless: %d, %v", r.Out, r.Err)
		}
	})
}

func TestHardStopAfterDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		p := newPool(t, pool.Config{Size: 1}, sleeper(time.Hour))
		handed := false
		submit(t, p, 0, func(r result) { handed = handedBack(r) })
		time.AfterFunc(time.Second, p.Drain)
		if err := p.Run(ctx); !errors.Is(err, context.DeadlineExceeded) || !handed {
			t.Errorf("Run: %v, handed back: %v", err, handed)
		}
	})
}

func TestNothingStartsWithACancelledContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		p := newPool(t, pool.Config{Size: 1}, func(context.Context, int, pool.Attempt) (int, pool.Verdict) {
			t.Error("a call was made")
			return 0, ok
		})
		handed := false
		submit(t, p, 0, func(r result) { handed = handedBack(r) && r.Started.IsZero() })
		if err := p.Run(ctx); !errors.Is(err, context.Canceled) || !handed {
			t.Errorf("Run: %v, handed back: %v", err, handed)
		}
	})
}

func TestDrainBeforeRun(t *testing.T) {
	p := newPool(t, pool.Config{Size: 1}, script())
	handed := false
	submit(t, p, 0, func(r result) { handed = handedBack(r) })
	p.Drain()
	p.Drain() // once more changes nothing
	if err := p.Run(t.Context()); err != nil || !handed {
		t.Errorf("Run: %v, handed back: %v", err, handed)
	}
	if err := p.Run(t.Context()); err == nil {
		t.Error("a second Run is no error")
	}
}

func TestBatchOnAPoolThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, pool.Config{Size: 1, QueueLimit: 1}, sleeper(time.Second))
		go func() {
			if err := p.Run(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		time.AfterFunc(1500*ms, p.Drain)
		results, err := p.ExecuteBatch(t.Context(), []int{0, 1, 2, 3, 4})
		if !errors.Is(err, pool.ErrStopped) || len(results) != 5 {
			t.Fatalf("%d results, %v", len(results), err)
		}
		for i, r := range results {
			if finished := i < 2; r.In != i || finished != (r.Err == nil) || !finished && !handedBack(r) {
				t.Errorf("result %d is of job %d: %v, class %v", i, r.In, r.Err, r.Class)
			}
		}
	})
}

func TestBatchEndsWithItsContext(t *testing.T) {
	for name, limit := range map[string]int{"while it submits": 1, "while it waits": 10} {
		bubble(t, name, func(t *testing.T) {
			p := running(t, pool.Config{Size: 1, QueueLimit: limit}, sleeper(time.Second))
			ctx, cancel := context.WithTimeoutCause(t.Context(), 1500*ms, errBad)
			defer cancel()
			results, err := p.ExecuteBatch(ctx, []int{0, 1, 2, 3, 4})
			if results != nil || !errors.Is(err, errBad) {
				t.Errorf("%d results, %v; want none and the context's cause", len(results), err)
			}
			time.Sleep(time.Minute)
			if got := p.Stats(); got.Waiting != 0 || got.Successes < 3 {
				t.Errorf("the jobs that were taken did not run to their end: %+v", got)
			}
		})
	}
}

// Finish ends Run once all jobs are done, those too that must wait for another attempt.
func TestFinishWaitsForEveryJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, pool.Config{Size: 2}, script(busy, reset, busy))
		done := 0
		for i := range 5 {
			submit(t, p, i, func(r result) {
				if done++; r.Err != nil {
					t.Errorf("job %d: %v", r.In, r.Err)
				}
			})
		}
		p.Finish()
		if err := p.Submit(t.Context(), 9, func(result) {}); !errors.Is(err, pool.ErrStopped) {
			t.Errorf("Submit after Finish: %v", err)
		}
		if err := p.Run(t.Context()); err != nil || done != 5 {
			t.Errorf("Run returned %v with %d of 5 jobs done", err, done)
		}
	})
}

// Drain ends what Finish waits for.
func TestDrainAfterFinishHandsJobsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, pool.Config{Size: 1}, script(withWait(busy, time.Hour)))
		var got error
		submit(t, p, 0, func(r result) { got = r.Err })
		p.Finish()
		time.AfterFunc(time.Minute, p.Drain)
		if err := p.Run(t.Context()); err != nil || !errors.Is(got, pool.ErrHandedBack) {
			t.Errorf("Run returned %v, the job %v", err, got)
		}
	})
}
