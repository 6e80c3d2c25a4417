package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

var errOperator = errors.New("paused by alice")

// A call in flight ends, nothing else begins, and what waited goes when the halt is over, however long it took: the
// deadline of a row that is to be retried stands still.
func TestAHaltedPoolFinishesCallsAndStartsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := account{took: time.Second, fixed: true}
		p := a.running(t, pool.Config{Size: 1, RowTimeout: time.Minute})
		a.submit(t, p, 0, 1)
		p.Halt(errOperator)
		synctest.Wait()
		p.Halt(errors.New("paused by somebody else, later"))
		time.Sleep(time.Hour)
		if got := p.Stats(); got.Pause.Kind != pool.Operator || !errors.Is(got.Pause.Err, errOperator) || got.InFlight != 0 || got.Waiting != 1 {
			t.Errorf("an hour later: %+v", got)
		}
		p.Probe() // does nothing
		time.Sleep(time.Minute)
		p.Continue()
		p.Continue()
		time.Sleep(time.Minute)
		a.check(t,
			"0s job 0, probe false",
			"0s pause",
			"1s job 0 done: <nil>",
			"1h1m0s resume",
			"1h1m0s job 1, probe false",
			"1h1m1s job 1 done: <nil>",
		)
	})
}

// An order that is withdrawn before the pool has acted on it leaves no trace.
func TestTheLastOrderToAPoolCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := account{fixed: true}
		p := a.pool(t, pool.Config{Size: 1})
		p.Continue()
		p.Halt(errOperator)
		p.Continue()
		run(t, p)
		a.submit(t, p, 0)
		a.check(t, "0s job 0, probe false", "0s job 0 done: <nil>")
	})
}

// A halt within another pause stops the probes, and the end of the halt probes at once: the other pause goes on until
// then, and is not reported to be over in between.
func TestAHaltWithinAPauseStopsTheProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a account
		p := a.running(t, pool.Config{Size: 2})
		a.submit(t, p, 0)
		time.Sleep(time.Second)
		p.Halt(errOperator)
		time.Sleep(time.Hour)
		p.Continue()
		synctest.Wait()
		if got := p.Stats().Pause; got.Kind != pool.FatalError || got.Probes != 1 {
			t.Errorf("after the halt: %+v, want the pause before it, with one probe", got)
		}
		a.change(true)
		time.Sleep(10 * time.Second)
		p.Probe()
		synctest.Wait()
		a.check(t,
			"0s job 0, probe false",
			"0s pause",
			"1s pause",
			"1h0m1s resume",
			"1h0m1s pause",
			"1h0m1s job 0, probe true",
			"1h0m11s job 0, probe true",
			"1h0m11s resume",
			"1h0m11s job 0 done: <nil>",
		)
	})
}

// A pool that is halted in an outage fails no job for being held too long, and looks first whether the outage is over,
// however long the probe takes and whatever comes in meanwhile.
func TestAHaltedPoolFailsNoJobOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := false
		p := running(t, pool.Config{Size: 4, Retry: pool.DefaultRetry(), OutageHold: time.Minute}, func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
			if up {
				time.Sleep(10 * time.Second)
				return in, ok
			}
			return in, refused
		})
		var ended []error
		done := func(r result) { ended = append(ended, r.Err) }
		for i := range 8 {
			submit(t, p, i, done)
		}
		time.Sleep(30 * time.Second)
		if got := p.Stats().Pause.Kind; got != pool.Outage {
			t.Fatalf("pause %v, want an outage", got)
		}
		p.Halt(errOperator)
		time.Sleep(time.Hour)
		up = true
		p.Continue()
		submit(t, p, 8, done)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended) != 9 || errors.Join(ended...) != nil {
			t.Errorf("%d of 9 jobs ended: %v", len(ended), errors.Join(ended...))
		}
	})
}

// A halted pool costs nothing, and drains like any other.
func TestAHaltedPoolDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := account{took: time.Second, fixed: true}
		p := a.running(t, pool.Config{Size: 1})
		a.submit(t, p, 0, 1)
		p.Halt(errOperator)
		p.Drain()
		time.Sleep(time.Minute)
		a.check(t, "0s job 0, probe false", "0s job 1 handed back", "0s pause", "1s job 0 done: <nil>")
	})
}
