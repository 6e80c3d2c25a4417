package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// A poison job meets a sick server each time, and the others don't: its failures are its own.
func TestAPoisonJobFailsAfterItsAttempts(t *testing.T) {
	for _, size := range []int{1, 2, 4, 64} {
		for name, verdict := range map[string]pool.Verdict{"sick": sick, "sick, not to be retried": sickOnce} {
			bubble(t, fmt.Sprintf("%s, %d at a time", name, size), func(t *testing.T) {
				w := world{took: time.Second, poison: map[int]pool.Verdict{3: verdict, 7: verdict}}
				p := w.running(t, pool.Config{Size: size})
				results := batch(t, p, 20*size)
				if jobs := failed(results); !slices.Equal(jobs, []int{3, 7}) {
					t.Errorf("jobs %v failed", jobs)
				}
				want := 3
				if verdict.Class == pool.Permanent {
					want = 1
				}
				if r := results[3]; r.Attempts != want || !errors.Is(r.Err, errGateway) {
					t.Errorf("%d attempts, %v; want %d", r.Attempts, r.Err, want)
				}
				if len(w.pause) != 0 {
					t.Errorf("pauses %v", w.pause)
				}
			})
		}
	}
}

// Poison jobs at the end of all, when no other is left to tell, end by their attempts; the rest of an input may be
// such. Where a rule takes the four for an outage, no success ends it, and they have no result.
func TestPoisonJobsAtTheEnd(t *testing.T) {
	for _, c := range []struct{ jobs, first int }{{100, 96}, {1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			w := world{took: time.Second, spread: 500 * ms, poison: map[int]pool.Verdict{}}
			var poisoned []int
			for in := c.first; in < c.jobs; in++ {
				w.poison[in] = sick
				poisoned = append(poisoned, in)
			}
			results := batch(t, w.running(t, pool.Config{Size: 4}), c.jobs)
			if jobs := failed(results); !slices.Equal(jobs, poisoned) {
				t.Errorf("of %d jobs %v failed", c.jobs, jobs)
			}
			if r := results[0]; c.jobs == 1 && (r.Attempts != 3 || !errors.Is(r.Err, errGateway)) {
				t.Errorf("%d attempts, %v", r.Attempts, r.Err)
			}
		})
	}
}

// A lone job that reaches no server never fails: that is not its fault.
func TestALoneJobWaitsForAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, outages: []outage{{0, time.Hour, refused}}}
		p := w.running(t, pool.Config{Size: 4})
		if r := batch(t, p, 1)[0]; r.Err != nil {
			t.Error(r.Err)
		}
		if n := len(w.calls); n > 5+600 {
			t.Errorf("%d calls in an hour", n)
		}
		if want := []string{"outage"}; !slices.Equal(w.pause, want) {
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// Jobs beside each other that always fail look like an outage, once.
func TestNeighboursThatAlwaysFail(t *testing.T) {
	for _, size := range []int{1, 8} {
		for _, n := range []int{2, 3, 5} {
			synctest.Test(t, func(t *testing.T) {
				w := world{took: 50 * ms, poison: map[int]pool.Verdict{}}
				var bad []int
				for i := range n {
					w.poison[10+i] = sick
					bad = append(bad, 10+i)
				}
				p := w.running(t, pool.Config{Size: size, QueueLimit: 100})
				results := batch(t, p, 63)
				if jobs := failed(results); !slices.Equal(jobs, bad) {
					t.Errorf("size %d, %d neighbours: jobs %v failed", size, n, jobs)
				}
				for _, in := range bad {
					if a := results[in].Attempts; a > 8 {
						t.Errorf("size %d, %d neighbours: job %d was called %d times", size, n, in, a)
					}
				}
				if len(w.pause) > 2 {
					t.Errorf("size %d, %d neighbours: pauses %v", size, n, w.pause)
				}
			})
		}
	}
}

// Jobs that always time out are distinguished from an outage by the others that succeeded meanwhile, though none is
// left to ask when the first of them fails: the queue is full behind them.
func TestJobsThatTimeOutWhenAllOthersAreDone(t *testing.T) {
	for _, n := range []int{2, 12} {
		synctest.Test(t, func(t *testing.T) {
			slow := pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errors.New("timed out")}
			p := running(t, pool.Config{Size: 32, QueueLimit: 2000}, func(ctx context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
				if in%50 == 10 && in < 50*n {
					pause(ctx, 8*time.Second)
					return 0, slow
				}
				return sleeper(50*ms)(ctx, in, pool.Attempt{})
			})
			results := batch(t, p, 1000)
			if jobs := failed(results); len(jobs) != n {
				t.Errorf("jobs %v failed, want %d", jobs, n)
			}
			if a := results[10].Attempts; a > 4 {
				t.Errorf("%d attempts", a)
			}
		})
	}
}

// While one call lasts long there is nobody to tell whose the failures of a job are. Each call may have to be paid for,
// so they become fewer.
func TestAPoisonJobBesideALongCallIsTriedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 4, Rand: rand.New(rand.NewPCG(1, 2)).Float64}, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			if in == 0 {
				return sleeper(10*time.Minute)(ctx, in, a)
			}
			return 0, sick
		})
		if r := batch(t, p, 2)[1]; r.Err == nil || r.Attempts > 40 {
			t.Errorf("%v after %d attempts", r.Err, r.Attempts)
		}
	})
}
