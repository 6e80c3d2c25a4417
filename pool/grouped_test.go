package pool_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// part is one of many jobs of a group.
type part struct{ group, n int }

func (p part) Traits() pool.Traits { return pool.Traits{Group: p.group} }

// parts executes jobs of groups, so many of each, and returns how many failed in each group, the pauses there were, and
// the number of calls.
func parts(t *testing.T, size int, groups []int, answer func(since time.Duration, p part) pool.Verdict) (failed map[int]int, pauses, calls int) {
	t.Helper()
	begin := time.Now()
	counts := make(chan struct{}, 10_000)
	p := running(t, pool.Config{Size: size, OnPause: func(pool.Pause) { pauses++ }}, func(_ context.Context, in part, _ pool.Attempt) (int, pool.Verdict) {
		counts <- struct{}{}
		time.Sleep(10 * ms)
		return 0, answer(time.Since(begin), in)
	})
	var ins []part
	for g, n := range groups {
		for i := range n {
			ins = append(ins, part{g, i})
		}
	}
	failed = map[int]int{}
	for _, r := range execute(t, p, ins) {
		if r.Err != nil {
			failed[r.In.group]++
		}
	}
	return failed, pauses, len(counts)
}

// TestAGroupThatFailsIsNoOutage: a hundred jobs with one cause in common are one piece of evidence, so the others go on.
func TestAGroupThatFailsIsNoOutage(t *testing.T) {
	for name, verdict := range map[string]pool.Verdict{"500": sick, "400": unknownParameter} {
		bubble(t, name, func(t *testing.T) {
			failed, pauses, calls := parts(t, 4, []int{100, 2, 2, 2, 2, 2}, func(_ time.Duration, p part) pool.Verdict {
				if p.group == 0 {
					return verdict
				}
				return ok
			})
			if failed[0] != 100 || len(failed) != 1 || pauses > 0 || calls > 500 {
				t.Errorf("%v failed, %d pauses, %d calls", failed, pauses, calls)
			}
		})
	}
}

// TestAnOutageFailsNoGroup: whether there are many groups or one, an outage of minutes costs no job.
func TestAnOutageFailsNoGroup(t *testing.T) {
	for name, groups := range map[string][]int{"one": {200}, "a large one and others": {200, 3, 3}, "many": {20, 20, 20, 20, 20, 20, 20, 20}} {
		bubble(t, name, func(t *testing.T) {
			failed, _, _ := parts(t, 8, groups, func(since time.Duration, _ part) pool.Verdict {
				if since > 100*ms && since < 10*time.Minute {
					return sick
				}
				return ok
			})
			if len(failed) > 0 {
				t.Errorf("%v failed", failed)
			}
		})
	}
}

// TestJobsLeftWithoutAUsableReplyUseUpTheirAttempts: before the first success too few rows to blame the settings, or
// one with any number of elements, are not asked again and again, each time for money, once none is left that could show
// whose fault it is.
func TestJobsLeftWithoutAUsableReplyUseUpTheirAttempts(t *testing.T) {
	for name, groups := range map[string][]int{"one": {100}, "few": {2, 3, 1, 1}} {
		bubble(t, name, func(t *testing.T) {
			failed, pauses, calls := parts(t, 4, groups, func(since time.Duration, _ part) pool.Verdict {
				if since > 10*time.Minute { // else it would never end
					return ok
				}
				return wrongSchema
			})
			jobs := 0
			for g, n := range groups {
				jobs += n
				if failed[g] != n {
					t.Errorf("%d jobs of group %d failed, want %d", failed[g], g, n)
				}
			}
			if want := jobs * pool.DefaultRetry().MaxAttempts; pauses > 0 || calls != want {
				t.Errorf("%d calls, %d pauses; want %d and none", calls, pauses, want)
			}
		})
	}
}

// While jobs of other groups are about to come, a group that fails is no outage, though the pool has no other job.
func TestAJobThatIsExpectedMayShowWhoIsToBlame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expected atomic.Bool
		expected.Store(true)
		pauses := 0
		p := running(t, pool.Config{Size: 4, Expected: expected.Load, OnPause: func(pool.Pause) { pauses++ }}, func(_ context.Context, in part, _ pool.Attempt) (int, pool.Verdict) {
			time.Sleep(10 * ms)
			if in.group == 0 {
				return 0, sick
			}
			return 0, ok
		})
		failed := 0
		add := func(group int) {
			submit(t, p, part{group: group}, func(r pool.Result[part, int]) {
				if r.Err != nil {
					failed++
				}
			})
		}
		for range 20 {
			add(0)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if failed > 0 || pauses > 0 {
			t.Errorf("before another group came: %d failed, %d pauses", failed, pauses)
		}
		for group := range 5 {
			add(group + 1)
			time.Sleep(time.Second)
		}
		expected.Store(false)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if failed != 20 || pauses > 0 {
			t.Errorf("%d of 20 failed, %d pauses", failed, pauses)
		}
	})
}
