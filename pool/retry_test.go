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

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

func TestTheClassOfAVerdictDecidesHowAJobEnds(t *testing.T) {
	fifty := slices.Repeat([]pool.Verdict{busy}, 50)
	for _, test := range []struct {
		name              string
		cfg               pool.Config
		verdicts          []pool.Verdict
		end               pool.Verdict
		attempts, retries int
	}{
		{
			"capacity errors are no attempts",
			pool.Config{Retry: pool.RetryConfig{MaxAttempts: 2, BackoffFactor: 1}},
			slices.Concat(fifty, []pool.Verdict{reset}, fifty), ok, 2, 100,
		},
		{"transient errors are bounded", pool.Config{}, []pool.Verdict{reset, reset, reset}, reset, 3, 0},
		{"permanent errors fail at once", pool.Config{}, []pool.Verdict{bad}, bad, 1, 0},
		{"fatal errors do where that is asked for", pool.Config{FailOnFatal: true}, []pool.Verdict{badKey}, badKey, 1, 0},
	} {
		bubble(t, test.name, func(t *testing.T) {
			test.cfg.Size = 1
			first, others := script(test.verdicts...), script()
			p := running(t, test.cfg, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				if in == 0 {
					return first(ctx, in, a)
				}
				return others(ctx, in, a)
			})
			results := batch(t, p, 2)
			r := results[0]
			if !errors.Is(r.Err, test.end.Err) || r.Class != test.end.Class || r.Attempts != test.attempts || r.CapacityRetries != test.retries {
				t.Errorf("%v after %d attempts and %d capacity errors, class %v", r.Err, r.Attempts, r.CapacityRetries, r.Class)
			}
			if results[1].Err != nil {
				t.Errorf("the next job: %v", results[1].Err)
			}
		})
	}
}

// TestBackoffIsFullJitter: after the n-th transient error the wait is that part of base × factor^(n-1), or of the
// maximum, that Rand draws.
func TestBackoffIsFullJitter(t *testing.T) {
	retry := pool.RetryConfig{MaxAttempts: 6, BaseDelay: time.Second, BackoffFactor: 3, MaxDelay: 20 * time.Second}
	longest := []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 20 * time.Second, 20 * time.Second}
	for _, u := range []float64{0, 0.25, 0.999} {
		bubble(t, fmt.Sprint(u), func(t *testing.T) {
			var dispatched []time.Time
			cfg := pool.Config{Size: 1, Retry: retry, Rand: func() float64 { return u }}
			p := running(t, cfg, func(_ context.Context, _ int, a pool.Attempt) (int, pool.Verdict) {
				dispatched = append(dispatched, a.Dispatched)
				return 0, reset
			})
			batch(t, p, 1)
			if len(dispatched) != 6 {
				t.Fatalf("%d attempts, want 6", len(dispatched))
			}
			for i, most := range longest {
				got, want := dispatched[i+1].Sub(dispatched[i]), time.Duration(u*float64(most))
				if got != want {
					t.Errorf("wait %d is %v, want %v", i+1, got, want)
				}
			}
		})
	}
}

func TestBackoffHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 2, Rand: func() float64 { return 1 }},
			func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				if in < 2 {
					return script(reset)(ctx, in, a)
				}
				return sleeper(100*ms)(ctx, in, a)
			})
		results := batch(t, p, 12)
		// Ten calls of 100 ms fit into the two seconds of backoff.
		if at := results[11].Finished.Sub(results[0].Started); at != 501*ms {
			t.Errorf("the jobs behind those in backoff were done after %v, want 501ms", at)
		}
	})
}

func TestRetryAfterIsAMinimumForTheRowAlone(t *testing.T) {
	for _, class := range []pool.Class{pool.Capacity, pool.Transient} {
		bubble(t, class.String(), func(t *testing.T) {
			asked := pool.Verdict{Class: class, Err: errBusy, Hint: aimd.Hint{RetryAfter: 7 * time.Second}}
			p := running(t, pool.Config{Size: 2, Rand: func() float64 { return 0 }},
				func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
					if in == 0 {
						return script(asked)(ctx, in, a)
					}
					return sleeper(ms)(ctx, in, a)
				})
			results := batch(t, p, 3)
			if took := results[0].Finished.Sub(results[0].Started); took != 7*time.Second+2*ms {
				t.Errorf("done after %v, want a second call after 7s", took)
			}
			if took := results[2].Finished.Sub(results[2].Queued); took > time.Second {
				t.Errorf("another job waited for %v", took)
			}
		})
	}
}

func TestStatsTellWhyAndHowLongTheLawPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(1))
		if err != nil {
			t.Fatal(err)
		}
		none := pool.Verdict{Class: pool.Capacity, Err: errBusy, Hint: aimd.Hint{Remaining0: true, Reset: 7 * time.Second}}
		p := running(t, pool.Config{Size: 1, Law: law}, script(none))
		begin := time.Now()
		submit(t, p, 0, func(result) {})
		time.Sleep(time.Second)
		if got := p.Stats(); got.LawPauseReason != aimd.PauseLimitReset || got.LawPausedUntil.Sub(begin) != 7*time.Second+ms {
			t.Errorf("while it pauses: %+v", got)
		}
		time.Sleep(10 * time.Second)
		if got := p.Stats(); got.LawPauseReason != "" || !got.LawPausedUntil.IsZero() || got.Successes != 1 {
			t.Errorf("afterwards: %+v", got)
		}
	})
}

func TestOldestRetryGoesBeforeAnyNewJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The pacer lets an attempt go every 10 ms. Those at the jobs 0 to 3 are rejected after 35 to 38 ms, the
		// youngest first.
		calls := make(chan string, 100)
		begin := time.Now()
		p := running(t, pool.Config{Size: 4, Law: spaced(t, 10*ms)},
			func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
				calls <- fmt.Sprintf("%d.%d", in, a.Number)
				if in < 4 && a.Number == 1 {
					time.Sleep(time.Duration(38-in)*ms - time.Since(begin))
					return 0, busy
				}
				return 0, ok
			})
		batch(t, p, 6)
		close(calls)
		var got []string
		for c := range calls {
			got = append(got, c)
		}
		if want := strings.Fields("0.1 1.1 2.1 3.1 0.2 1.2 2.2 3.2 4.1 5.1"); !slices.Equal(got, want) {
			t.Errorf("calls %v,\n want %v", got, want)
		}
	})
}

// A job ends when it has waited for too long, but a call in flight is left to end.
func TestRowTimeoutEndsWaits(t *testing.T) {
	const none = -1
	for _, test := range []struct {
		name     string
		cfg      pool.Config
		calls    time.Duration
		verdict  pool.Verdict // on all jobs but one
		succeeds int
		took     time.Duration
	}{
		{"for capacity", pool.Config{Law: spaced(t, time.Second), RowTimeout: 10500 * ms, QueueLimit: 1}, 0, busy, none, 10500 * ms},
		{"for another attempt", pool.Config{RowTimeout: time.Second, Rand: func() float64 { return 1 }}, ms, reset, none, time.Second},
		{"after a call that takes longer", pool.Config{RowTimeout: time.Second}, 3 * time.Second, busy, 0, 3 * time.Second},
	} {
		bubble(t, test.name, func(t *testing.T) {
			test.cfg.Size = 2
			p := running(t, test.cfg, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
				time.Sleep(test.calls)
				if in == test.succeeds {
					return in, ok
				}
				return 0, test.verdict
			})
			for i, r := range batch(t, p, 4) {
				took := r.Finished.Sub(r.Started)
				late := errors.Is(r.Err, pool.ErrRowTimeout) && errors.Is(r.Err, test.verdict.Err) && r.Class == test.verdict.Class
				if took != test.took || i == test.succeeds && r.Err != nil || i != test.succeeds && !late {
					t.Errorf("job %d: %v after %v, class %v; want its end after %v", i, r.Err, took, r.Class, test.took)
				}
			}
		})
	}
}

// recorder is a law that lets everything go and records its calls.
type recorder struct {
	calls []string
}

func (r *recorder) Next(now time.Time, _ int) time.Time { return now }

func (r *recorder) Sent(now time.Time, inFlight int) aimd.Ticket {
	r.calls = append(r.calls, fmt.Sprintf("sent %d", inFlight))
	return aimd.Ticket{Sent: now, InFlight: inFlight}
}
func (r *recorder) Accepted(time.Time, aimd.Ticket) { r.calls = append(r.calls, "accepted") }
func (r *recorder) Rejected(_ time.Time, _ aimd.Ticket, h aimd.Hint) {
	r.calls = append(r.calls, fmt.Sprintf("rejected, remaining0 %v, reset %v", h.Remaining0, h.Reset))
}
func (r *recorder) Dropped(time.Time, aimd.Ticket) { r.calls = append(r.calls, "dropped") }
func (r *recorder) Restart(time.Time)              { r.calls = append(r.calls, "restart") }
func (r *recorder) Stats() aimd.Stats              { return aimd.Stats{} }

func TestLawIsToldEveryVerdict(t *testing.T) {
	hinted := pool.Verdict{Class: pool.Capacity, Err: errBusy, Hint: aimd.Hint{Remaining0: true, Reset: time.Second}}
	for _, test := range []struct {
		name string
		call call
		want string
	}{
		{"ok", script(), "accepted"},
		{"capacity", script(hinted, bad), "rejected, remaining0 true, reset 1s"},
		{"transient", script(reset, bad), "accepted"},
		{"permanent", script(bad), "accepted"},
		{"fatal", script(badKey), "accepted"},
		{"cancelled", script(cancelled), "dropped"},
		{"panic", func(context.Context, int, pool.Attempt) (int, pool.Verdict) { panic("boom") }, "dropped"},
	} {
		bubble(t, test.name, func(t *testing.T) {
			law := &recorder{}
			p := running(t, pool.Config{Size: 1, Law: law, FailOnFatal: true}, test.call)
			batch(t, p, 1)
			if want := []string{"sent 1", test.want}; !slices.Equal(law.calls[:2], want) {
				t.Errorf("the law was called %q, want %q", law.calls[:2], want)
			}
		})
	}
}
