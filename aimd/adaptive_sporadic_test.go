package aimd

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// behind refuses a share of the calls for a limiter of rate calls a second.
func behind(share float64, limiter func(time.Duration, int) bool) func(time.Duration, int) bool {
	rng := rand.New(rand.NewPCG(3, 4))
	return func(now time.Duration, n int) bool { return rng.Float64() >= share && limiter(now, n) }
}

func TestSporadicRefusalsDoNotThrottle(t *testing.T) {
	for _, tc := range []struct{ rate, sec, share, least float64 }{
		{20, 120, 0.01, 0.95},
		{20, 120, 0.05, 0.86},
		{200, 60, 0.002, 0.95},
		{200, 60, 0.02, 0.94},
		{200, 60, 0.05, 0.86},
	} {
		w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 512}, behind(tc.share, bucket(tc.rate, 5)))
		w.run(20 * time.Second)
		sent, refused := w.count(20*time.Second + time.Duration(tc.sec)*time.Second)
		if got := float64(sent-refused) / tc.sec / tc.rate; got < tc.least {
			t.Errorf("%g/s with %g of the calls refused for no reason: uses %.3f, want at least %.3f", tc.rate, tc.share, got, tc.least)
		}
		if waste := float64(refused) / float64(sent); waste > 1.2*tc.share+0.09 {
			t.Errorf("%g/s with %g of the calls refused for no reason: %.3f refused", tc.rate, tc.share, waste)
		}
	}
}

// One that comes with the very first calls must not end the first start.
func TestSporadicRefusalsDoNotEndTheFirstStart(t *testing.T) {
	n := 0
	w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 512}, func(time.Duration, int) bool { n++; return n != 1 && n != 40 })
	w.run(5 * time.Second)
	if w.law.Phase() != Start || len(w.refused) != 2 {
		t.Errorf("in %v after two of %d calls were refused, want start", w.law.Phase(), len(w.sent))
	}
}

func TestSporadicRefusalsDoNotHideAFall(t *testing.T) {
	const falls = 8 // chance decides how soon one is noticed
	soon, later := 0, 0
	for n := range falls {
		fall := 70*time.Second + time.Duration(n)*100*ms
		w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 512},
			behind(0.01, after(fall, bucket(200, 5), bucket(50, 5))))
		w.run(fall + 10*time.Second)
		soon += between(w.refused, fall, fall+2*time.Second)
		later += between(w.refused, fall+2*time.Second, w.now)
	}
	if soon > 130*falls {
		t.Errorf("%d calls refused in the two seconds after a fall from 200/s to 50/s, want at most 130", soon/falls)
	}
	if later > 80*falls {
		t.Errorf("%d calls refused in the next eight, want at most 80", later/falls)
	}
}

// What is refused because the rate is too high is not usual, however often it happens: here it goes up and down all the
// time.
func TestFallsDoNotRaiseTheUsualLoss(t *testing.T) {
	level, last := 5.0, time.Duration(0)
	w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 64}, func(now time.Duration, _ int) bool {
		rate := 12 + 8*math.Sin(2*math.Pi*now.Seconds()/60)
		level = min(5, level+rate*(now-last).Seconds())
		last = now
		if level < 1 {
			return false
		}
		level--
		return true
	})
	w.run(600 * time.Second)
	if waste := float64(len(w.refused)) / float64(len(w.sent)); waste > 0.1 || w.law.noise.base > 0.08 || w.law.noise.on {
		t.Errorf("%.3f of the calls refused at a server that drifts, with a usual loss of %.3f, want at most 0.1", waste, w.law.noise.base)
	}
}

// A climb ends at a server that is as fast as was measured, so a little less is enough to drain.
func TestClimbsEndGently(t *testing.T) {
	w := newWorld(t, bucket(20, 1))
	w.run(20 * time.Second)
	sent, refused := w.count(120 * time.Second)
	if got := float64(sent-refused) / 100 / 20; got < 0.84 {
		t.Errorf("a limiter without a bucket: uses %.3f, want at least 0.84", got)
	}
}

func TestCanariesEndAnUntruePause(t *testing.T) {
	w := newWorld(t, after(50*time.Second, bucket(20, 5), after(52*time.Second, never, bucket(20, 5))))
	w.hint = func(time.Duration) Hint { return Hint{RetryAfter: time.Minute} }
	w.run(51500 * ms)
	if w.law.Stats().PausedUntil.IsZero() {
		t.Fatal("no pause")
	}
	w.run(60 * time.Second)
	if n := between(w.sent, 54*time.Second, 60*time.Second); n < 90 {
		t.Errorf("%d calls in the six seconds from two seconds after the outage on, want about 120", n)
	}
}

// In a pause one canary is in flight at a time, each twice as long after the last, and none raises the failures.
func TestCanariesGetRare(t *testing.T) {
	w := newWorld(t, after(50*time.Second, bucket(20, 5), never))
	w.hint = func(now time.Duration) Hint { return Hint{RetryAfter: 250*time.Second - now} }
	w.run(52 * time.Second)
	failures := w.law.epoch.failures
	w.run(240 * time.Second)
	if n := between(w.sent, 52*time.Second, w.now); n > 8 || n < 5 {
		t.Errorf("%d canaries in a pause of 200s, want about 7", n)
	}
	if w.law.epoch.failures != failures {
		t.Errorf("%d failures after the canaries, %d before", w.law.epoch.failures, failures)
	}
}

// A reset is the server's account of its own limit, not a guess.
func TestNoCanaryWhereNothingRemains(t *testing.T) {
	w := newWorld(t, nil)
	w.law.Rejected(at(0), w.law.Sent(at(0), 1), Hint{Remaining0: true, Reset: time.Minute})
	if next := w.law.Next(at(ms), 0); next.Before(at(time.Minute)) {
		t.Errorf("the next may go %v after the refusal, want not within a minute", next.Sub(at(0)))
	}
}

func TestACanaryMayBeDropped(t *testing.T) {
	w := settled(t)
	for w.law.Stats().PausedUntil.IsZero() {
		w.refuseInARow(1, Hint{RetryAfter: time.Hour})
	}
	canary := w.law.Next(at(w.now), 0)
	w.law.Dropped(canary.Add(ms), w.law.Sent(canary, 1))
	next := w.law.Next(canary.Add(2*ms), 0)
	if wait := next.Sub(canary); w.law.Stats().PausedUntil.IsZero() || wait > 5*time.Second {
		t.Errorf("the next canary goes %v after one that was dropped, want within seconds and still paused", wait)
	}
}
