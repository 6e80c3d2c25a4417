package pool_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

func TestJobsPassAnOutage(t *testing.T) {
	for _, test := range []struct {
		after  time.Duration // FallbackAfter
		passed time.Duration // when jobs go past
		pause  []string
	}{
		{after: 20 * time.Second, passed: 30 * time.Second, pause: []string{"outage", "passed"}},
		{after: 0, passed: 10 * time.Second, pause: nil}, // as when their attempts are used up
	} {
		bubble(t, test.after.String(), func(t *testing.T) {
			const back = 60 * time.Second
			w := world{took: time.Second, outages: []outage{{10 * time.Second, back, sick}}, servers: map[int]*world{1: {took: time.Second}}}
			p := w.running(t, pool.Config{Size: 4, FallbackAfter: test.after, Fallbacks: []pool.Server{{}}})
			if jobs := failed(batch(t, p, 400)); jobs != nil {
				t.Errorf("jobs %v failed", jobs)
			}
			passed := slices.IndexFunc(w.calls, func(c sent) bool { return c.at1 })
			if at := w.calls[passed].at; at < test.passed || at > test.passed+2*time.Second {
				t.Errorf("the first job passed at %v", at)
			}
			for _, c := range w.during(back+4*time.Second, time.Hour) {
				if c.at1 {
					t.Errorf("a job passed at %v, long after it was back", c.at)
					break
				}
			}
			if !slices.Equal(w.pause, test.pause) {
				t.Errorf("pauses %v, want %v", w.pause, test.pause)
			}
		})
	}
}

// A job that used up its attempts at the first server and meets an outage of the fallback goes to the first again: it is
// not lost while nobody says that it is the job's fault.
func TestAnOutageOfAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{
			took: time.Second, outages: []outage{{10 * time.Second, 40 * time.Second, sick}},
			servers: map[int]*world{1: {took: time.Second, outages: []outage{{5 * time.Second, time.Hour, refused}}}},
		}
		p := w.running(t, pool.Config{Size: 4, Fallbacks: []pool.Server{{}}})
		if jobs := failed(batch(t, p, 200)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		if late := w.during(40*time.Second, time.Hour)[0].at - 40*time.Second; late > 1250*ms {
			t.Errorf("the first server was asked %v late", late)
		}
		if took := time.Since(w.begin); took > 100*time.Second {
			t.Errorf("took %v: jobs waited for the fallback", took)
		}
	})
}

// With both servers out and back again, a job that always fails probes in turns with others.
func TestAPoisonJobCantHoldTheDoorsOfTwoServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := map[int]pool.Verdict{20: sick} // the first of those that the outage holds
		w := world{
			took: time.Second, poison: poison, outages: []outage{{5 * time.Second, 40 * time.Second, sick}},
			servers: map[int]*world{1: {
				// A moment later, so that one server is probed while no probe of the other is in flight.
				took: time.Second, poison: poison, outages: []outage{{5130 * ms, 40 * time.Second, sick}},
			}},
		}
		p := w.running(t, pool.Config{Size: 4, QueueLimit: 100, Fallbacks: []pool.Server{{}}})
		var lost []int
		done := 0
		for in := range 100 {
			submit(t, p, in, func(r result) {
				done++
				if r.Err != nil {
					lost = append(lost, in)
				}
			})
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if done != 100 || !slices.Equal(lost, []int{20}) {
			t.Errorf("%d jobs are done, %v failed", done, lost)
		}
	})
}

// Jobs that could go past the first server are held as soon as the fallback is out too, and from then on.
func TestOutagesOfAllServersHoldJobsTooLong(t *testing.T) {
	for _, after := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			const from = 20 * time.Second // when the fallback is out too
			w := world{
				took: time.Second, outages: []outage{{5 * time.Second, time.Hour, sick}},
				servers: map[int]*world{1: {took: time.Second, outages: []outage{{from, time.Hour, sick}}}},
			}
			p := w.running(t, pool.Config{Size: 4, QueueLimit: 200, OutageHold: 10 * time.Second, FallbackAfter: after, Fallbacks: []pool.Server{{}}})
			held := 0
			for _, r := range batch(t, p, 200) {
				if r.Err == nil {
					continue
				}
				held++
				if d := r.Finished.Sub(w.begin) - from; !errors.Is(r.Err, pool.ErrOutage) || d < 10*time.Second || d > 12*time.Second {
					t.Errorf("job %d: %v, %v after the second outage began", r.In, r.Err, d)
				}
			}
			if held < 100 {
				t.Errorf("%d jobs failed", held)
			}
		})
	}
}

// A job that has used up its attempts at the first server fails where the fallback can't be reached: it would hold up
// those behind it for as long.
func TestAJobWhoseFallbackCantBeReachedFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{
			took: time.Second, poison: map[int]pool.Verdict{7: sick},
			servers: map[int]*world{1: {outages: []outage{{0, 24 * time.Hour, refused}}}},
		}
		p := w.running(t, pool.Config{Size: 8, QueueLimit: 100, Fallbacks: []pool.Server{{}}})
		results := batch(t, p, 60)
		if jobs := failed(results); !slices.Equal(jobs, []int{7}) {
			t.Errorf("jobs %v failed", jobs)
		}
		if a := results[7].Attempts; a > 20 {
			t.Errorf("%d attempts", a)
		}
	})
}
