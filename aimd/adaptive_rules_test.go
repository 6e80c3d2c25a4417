package aimd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// atMost admits while fewer than limit calls that it admitted are in flight.
func (w *world) atMost(limit int) func(time.Duration, int) bool {
	return func(time.Duration, int) bool {
		accepted := 0
		for _, c := range w.calls {
			if c.accepted {
				accepted++
			}
		}
		return accepted < limit
	}
}

// The law finds a limit on calls in flight, keeps it over a restart, and opens when it rises and when it is gone.
func TestSlotsFollowALimitOnCallsInFlight(t *testing.T) {
	w := newWorld(t, nil)
	w.admit = w.atMost(8)
	w.run(30 * time.Second)
	found := func(want int) {
		t.Helper()
		if got := w.law.slots.limit; got != want {
			t.Fatalf("after %v the limit found is %d, want %d", w.now, got, want)
		}
	}
	found(8)
	sent, refused := w.count(90 * time.Second)
	if full := 60 * 8 / w.reply.Seconds(); float64(sent-refused) < 0.98*full || refused > sent/25 {
		t.Errorf("%d calls of which %d refused in a minute, want close to %.0f accepted", sent, refused, full)
	}
	w.law.Restart(at(w.now))
	found(8)
	w.run(100 * time.Second)
	w.admit = w.atMost(16)
	w.run(130 * time.Second)
	found(16)
	w.admit = always
	w.run(170 * time.Second)
	if w.inFlight != w.slots {
		t.Errorf("%d calls in flight after the limit is gone, want %d", w.inFlight, w.slots)
	}
}

// News of refusals may overtake each other. If two were spared and the next is of an attempt sent before them, then less
// than nothing was sent since the last measurement. A rate of 0 would leave the law without any pace.
func TestAMeasurementOfNothingIsARate(t *testing.T) {
	l := newWorld(t, always).law
	first := l.Sent(at(0), 1)
	l.noise.spared = 2
	l.arrive(at(200 * ms))
	l.giveWay(first.mark)
	l.Accepted(at(2*time.Second), l.Sent(at(time.Second), 1))
	if rate := l.Rate(at(2 * time.Second)); l.Estimate() <= 0 || math.IsNaN(rate) {
		t.Errorf("estimate %v, rate %v, want both above 0", l.Estimate(), rate)
	}
}

func TestNoiseIsToldFromALimit(t *testing.T) {
	for _, share := range []float64{0.05, 0.2} {
		w := newWorld(t, atRandom(share))
		w.run(60 * time.Second)
		if share > 0.1 && !w.law.noise.on { // fewer are spared as sporadic
			t.Errorf("%.2f refused at random: not noticed in a minute", share)
			continue
		}
		sent := len(w.sent)
		w.run(120 * time.Second)
		if perSec, full := float64(len(w.sent)-sent)/60, 32/(1.2*(1-share)+0.06*share); perSec < 0.9*full {
			t.Errorf("%.2f refused at random: %.1f calls a second, want close to a full pool, %.1f", share, perSec, full)
		}
	}
}

func TestALimitOnTheRateIsNeitherNoiseNorALimitOnSlots(t *testing.T) {
	w := newWorld(t, bucket(20, 5))
	for w.now < 300*time.Second {
		if w.run(w.now + 100*ms); w.law.noise.on || w.law.slots.limit != 0 {
			t.Fatalf("at %v took a limiter for noise: %v, for a limit of %d calls in flight", w.now, w.law.noise.on, w.law.slots.limit)
		}
	}
}

// amidNoise returns a world in which the law has noticed within half a minute that a fifth is refused at random, and a
// server from then on.
func amidNoise(t *testing.T, then func(time.Duration, int) bool) *world {
	t.Helper()
	w := newWorld(t, after(30*time.Second, atRandom(0.2), then))
	w.run(30 * time.Second)
	if !w.law.noise.on {
		t.Fatal("noise not noticed")
	}
	return w
}

func TestNoiseDoesNotHideALimit(t *testing.T) {
	noise, limit := atRandom(0.2), bucket(10, 5)
	w := amidNoise(t, func(now time.Duration, n int) bool { return noise(now, n) && limit(now, n) })
	w.run(60 * time.Second)
	sent, refused := w.count(160 * time.Second)
	if float64(sent-refused) < 0.8*1000 || refused*100 > sent*45 {
		t.Errorf("%d calls of which %d refused in 100 s behind noise of 0.2 and a limit of 10/s", sent, refused)
	}
}

func TestNoiseDoesNotHideAnOutage(t *testing.T) {
	w := newWorld(t, after(40*time.Second, atRandom(0.2), after(160*time.Second, never, atRandom(0.2))))
	w.run(200 * time.Second)
	if n := between(w.refused, 40*time.Second, 160*time.Second); n > 95 {
		t.Errorf("%d calls refused in an outage of 120 s amid noise, want at most 95", n)
	}
	if n := between(w.sent, 180*time.Second, 200*time.Second); n < 400 {
		t.Errorf("%d calls in twenty seconds after it, want about 600", n)
	}
}

func TestNoiseIsForgottenWhenItEnds(t *testing.T) {
	w := amidNoise(t, bucket(10, 5))
	w.run(90 * time.Second)
	if w.law.noise.on {
		t.Error("still takes refusals for noise a minute after it ended")
	}
}

// A law that still takes more than a half for usual when the noise has turned out to be none would climb for ever.
func TestTheUsualLossEndsWithTheNoise(t *testing.T) {
	n := noise{on: true, base: noiseMost, counted: noiseCalls, held: 1}
	n.count(&sending{phase: Drain, refused: true})
	if n.on || n.base > usualMost {
		t.Errorf("noise %v, usual loss %.2f, want none and at most %.2f", n.on, n.base, usualMost)
	}
}

// Replicas of a stage know of each other, and each alone finds out that the server refuses at random. It takes more than
// one probe, as others may have left room for one.
func TestNoiseIsFoundWhereOthersAreKnown(t *testing.T) {
	w := newWorld(t, atRandom(0.2))
	w.law.Share(true)
	w.run(60 * time.Second)
	if n := between(w.sent, 40*time.Second, 60*time.Second); n < 400 {
		t.Errorf("%d calls in the last twenty of sixty seconds, want about 600", n)
	}
	p := probe{size: 8, refused: 1, gained: 1}
	if alone, shared := p.evidence(false), p.evidence(true); alone < oddsSure || shared > oddsSure/2 || 4*shared < oddsSure {
		t.Errorf("seven of eight accepted: evidence %.1f alone, and %.1f where others are known, want enough of one probe and of four", alone, shared)
	}
}

// A limiter looks like noise of any share to a law that believes in it and sends as many
// attempts more. So the share is measured where the rate is low.
func TestALimitIsNoNoise(t *testing.T) {
	w := newWorld(t, bucket(25, 5))
	w.law.Resume(at(0), 25)
	w.law.noise.begin(w.law, 32, 16)
	w.run(60 * time.Second)
	if w.law.noise.share() > 0.1 {
		t.Errorf("a limiter taken for noise of a half is still taken for noise of %.2f after a minute", w.law.noise.share())
	}
	if n := between(w.refused, 50*time.Second, 60*time.Second); n > 60 {
		t.Errorf("%d calls refused in the last ten of sixty seconds of a limit of 25/s, want at most 60", n)
	}
}

// afterProbe returns a law at an estimate of 20/s that has sent a probe of six calls, of which so many were refused, and
// the first of them or not. It has sent all six when their refusals are known.
func afterProbe(t *testing.T, refused int, again bool) *Adaptive {
	t.Helper()
	l := newWorld(t, always).law
	l.Resume(at(0), 20)
	s := &l.noise.suspicion
	s.probe = probe{size: 6, refused: refused, again: again, rate: 20, gained: 1.3}
	s.conclude(l)
	return l
}

// Each further slot has its own time to open: where several opened at one instant, all the pool's could.
func TestSlotsOpenOneAfterTheOther(t *testing.T) {
	s := slots{limit: 8}
	for i := range 1000 {
		s.since = float64(i) / 7
		if first, second := s.opens(8), s.opens(9); s.opens(7) != 0 || second <= first {
			t.Fatalf("after %.3f s: the ninth slot opens at %v, the tenth at %v", s.since, first, second)
		}
	}
}

// A refusal near the limit that a probe has met is the limiter's. Further below, noise may make the law sink.
func TestALimiterThatAProbeHasMetNeedsNoOther(t *testing.T) {
	for rate, want := range map[float64]bool{20: false, 16: false, 26: false, 12: true, 32: true} {
		l := afterProbe(t, 5, false)
		l.estimate, l.stats.Successes = rate, 1
		if l.noise.suspicion.suspect(l, mark{rate: rate}); l.noise.suspicion.wanted != want {
			t.Errorf("a refusal at %g/s, after a probe has met a limiter at 20/s: wants a probe: %t", rate, !want)
		}
	}
}

// A probe that is close to proof, or whose first call alone spoils it, is sent again at once while the credit lasts.
func TestAProbeIsSentAgainWherePromising(t *testing.T) {
	for _, tc := range []struct {
		name    string
		refused int
		again   bool
		want    bool
	}{
		{"four accepted", 2, false, true},
		{"all but the first accepted", 1, true, true},
		{"two accepted", 4, false, false},
		{"half of it accepted, the first refused again", 3, true, true},
		{"one accepted", 5, true, false},
	} {
		if l := afterProbe(t, tc.refused, tc.again); l.noise.on || l.noise.suspicion.wanted != tc.want {
			t.Errorf("%s: noise %t, another probe %t, want none and %t", tc.name, l.noise.on, l.noise.suspicion.wanted, tc.want)
		}
	}
}

// The rate of before has got through, so the start amid noise need not begin below it.
func TestNoiseStartsFromTheRateOfBefore(t *testing.T) {
	l := afterProbe(t, 0, false)
	if rate := l.Rate(at(0)); !l.noise.on || l.Phase() != Start || rate < 20 || rate > 30 {
		t.Errorf("noise %t, in %v at %.0f/s, want start at 20/s by what the noise lets through", l.noise.on, l.Phase(), rate)
	}
}

// Where a half is refused a first guess of what noise is on average would make the rest look like a limit.
func TestNoiseIsGuessedFromTheLossOfLate(t *testing.T) {
	for lost, want := range map[float64]float64{0: 0.25, 0.5: 0.38} {
		l := newWorld(t, always).law
		l.loss.share = lost
		if l.noise.begin(l, 5, 1); math.Abs(l.noise.base-want) > 0.01 {
			t.Errorf("a share of %.2f with a loss of %.2f of late, and one of five refused, want about %.2f", l.noise.base, lost, want)
		}
	}
}

// A limiter of tokens that has no room for a large call has room for smaller ones.
func TestASmallerCallIsNoEvidenceOfNoise(t *testing.T) {
	p := probe{size: 6, refused: 1, gained: 0.5}
	if p.evidence(false) < 2 {
		t.Errorf("five of six accepted where a limiter has room for one: evidence %.1f, want at least 2", p.evidence(false))
	}
	p.again = true
	if p.evidence(false) > 0 {
		t.Errorf("the same, and the refused call was refused again: evidence %.1f, want none", p.evidence(false))
	}
	p.refused = 5
	if p.evidence(false) > -1 {
		t.Errorf("one of six accepted: evidence %.1f, want at most -1", p.evidence(false))
	}
}

// The law climbs little where many are refused, so it is at the measured rate that it learns of noise that grows.
func TestNoiseMayGrow(t *testing.T) {
	const runs = 20
	accepted := 0
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 2))
		share := func(p float64) func(time.Duration, int) bool {
			return func(time.Duration, int) bool { return rng.Float64() >= p }
		}
		w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 100}, after(200*time.Second, share(0.1), share(0.3)))
		w.run(200 * time.Second)
		before := len(w.sent) - len(w.refused)
		w.run(260 * time.Second)
		accepted += len(w.sent) - len(w.refused) - before
	}
	if perSec := float64(accepted) / (60 * runs); perSec < 28 {
		t.Errorf("%.1f calls accepted a second in the minute after noise rose from 0.1 to 0.3, want at least 28", perSec)
	}
}

// Without a refusal nothing is measured, so the law climbs on from the estimate that it had amid the noise.
func TestNoiseIsForgottenInALongClimb(t *testing.T) {
	w := amidNoise(t, after(100*time.Second, always, bucket(10, 5)))
	w.run(100 * time.Second)
	if w.law.noise.on {
		t.Error("a new limit would be taken for noise 70 s after it ended")
	}
	w.run(110 * time.Second)
	if n := between(w.refused, 100*time.Second, 110*time.Second); n > 40 {
		t.Errorf("%d calls refused in the first ten seconds of a limit of 10/s, want at most 40", n)
	}
}

func TestHintsPauseWhenTheServerMeansThem(t *testing.T) {
	retryAfter := func(d time.Duration) Hint { return Hint{RetryAfter: d} }
	for _, tc := range []struct {
		name     string
		failures int // refusals in a row, each sent after the law knew of the one before
		hint     Hint
		pause    time.Duration
	}{
		{"a wait is what limiters say all the time", 2, retryAfter(time.Second), 0},
		{"it is obeyed after three refusals", 3, retryAfter(time.Second), time.Second},
		{"no requests remain until the reset", 1, Hint{Remaining0: true, Reset: 7 * time.Second}, 7 * time.Second},
		{"a reset without a number is ignored", 1, Hint{Remaining0: true, Reset: -time.Second}, 0},
		{"the reset matters only when nothing remains", 1, Hint{Reset: 7 * time.Second}, 0},
		{"a nonsensical wait is cut", 3, retryAfter(math.MaxInt64), 366 * 24 * time.Hour},
		{"the longer of two is obeyed", 2, Hint{RetryAfter: 3 * time.Second, Remaining0: true, Reset: 9 * time.Second}, 9 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			law := newWorld(t, nil).law
			now := at(0)
			law.Resume(now, 10) // in the first start a refusal or two may be sporadic
			for range tc.failures {
				now = now.Add(10 * time.Second)
				now = law.Next(now, 0)
				ticket := law.Sent(now, 1)
				now = now.Add(60 * ms)
				law.Rejected(now, ticket, tc.hint)
			}
			until := law.Stats().PausedUntil
			got := law.Stats()
			if !got.PausedUntil.Equal(until) || (got.PauseReason == "") != until.IsZero() {
				t.Errorf("the statistics report %q until %v, want a pause until %v", got.PauseReason, got.PausedUntil, until)
			}
			if want := tc.hint.Remaining0; !until.IsZero() && (got.PauseReason == PauseLimitReset) != want {
				t.Errorf("paused for %q", got.PauseReason)
			}
			if tc.pause == 0 {
				if !until.IsZero() {
					t.Fatalf("paused for %v, want no pause", until.Sub(now))
				}
				return
			}
			if got := until.Sub(now); got != tc.pause {
				t.Fatalf("paused for %v, want %v", got, tc.pause)
			}
			// A Retry-After is tried by a canary. Beyond farSec the law is called again before it matters.
			earliest := until
			if !tc.hint.Remaining0 {
				earliest = now.Add(950 * ms)
			}
			if next := law.Next(now.Add(ms), 0); next.Before(earliest.Add(-ms)) && next.Before(now.Add(farSec*time.Second)) {
				t.Errorf("the next may go after %v in a pause of %v", next.Sub(now), tc.pause)
			}
			if law.Next(until.Add(ms), 0); !law.Stats().PausedUntil.IsZero() || law.Stats().PauseReason != "" {
				t.Error("still paused when the pause is over")
			}
		})
	}
}

func TestPausesAreJittered(t *testing.T) {
	w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 1, Rand: func() float64 { return 0.5 }}, nil)
	ticket := w.law.Sent(at(0), 1)
	w.law.Rejected(at(0), ticket, Hint{Remaining0: true, Reset: 100 * time.Second})
	if got, want := w.law.Stats().PausedUntil, at(101*time.Second); !got.Equal(want) {
		t.Errorf("paused for %v, want %v: half of 2%% longer", got.Sub(at(0)), want.Sub(at(0)))
	}
}

func TestHintsSaveTheProbesOfAnOutage(t *testing.T) {
	w := newWorld(t, after(50*time.Second, bucket(20, 5), after(170*time.Second, never, bucket(20, 5))))
	w.hint = func(now time.Duration) Hint { return Hint{RetryAfter: 170*time.Second - now} }
	w.run(200 * time.Second)
	if n := between(w.sent, 50*time.Second, 170*time.Second); n > 15 {
		t.Errorf("%d calls in an outage whose end the server reported, want at most 15: those that find it, and seven canaries", n)
	}
	if n := between(w.sent, 170*time.Second, 175*time.Second); n < 85 {
		t.Errorf("%d calls in the five seconds after it, want about 100", n)
	}
}

// Whatever servers take turns, the law does not go on hammering one that refuses. A pool of 32 without a law would be
// refused 5000 times in ten seconds.
func TestAdaptiveNeverHammers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var w *world
		type turn struct {
			until time.Duration
			admit func(time.Duration, int) bool
		}
		var turns []turn
		var got []string
		end := time.Duration(0)
		for range rapid.IntRange(1, 5).Draw(rt, "turns") {
			end += time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second
			kind := rapid.SampledFrom([]string{"always", "never", "bucket", "noise", "slots", "noise and bucket"}).Draw(rt, "server")
			rate, burst := rapid.Float64Range(0.2, 50).Draw(rt, "rate"), float64(rapid.IntRange(1, 20).Draw(rt, "burst"))
			share, limit := rapid.Float64Range(0.01, 0.3).Draw(rt, "share"), rapid.IntRange(1, 20).Draw(rt, "slots")
			limited, random := bucket(rate, burst), atRandom(share)
			admit := map[string]func(time.Duration, int) bool{
				"always": always, "never": never, "bucket": limited, "noise": random,
				"slots":            func(now time.Duration, n int) bool { return w.atMost(limit)(now, n) },
				"noise and bucket": func(now time.Duration, n int) bool { return random(now, n) && limited(now, n) },
			}[kind]
			turns = append(turns, turn{end, admit})
			got = append(got, fmt.Sprintf("until %v: %s rate %.1f burst %.0f share %.2f slots %d", end, kind, rate, burst, share, limit))
		}
		w = newWorld(t, func(now time.Duration, n int) bool {
			for _, turn := range turns {
				if now < turn.until {
					return turn.admit(now, n)
				}
			}
			return true
		})
		w.run(end)
		for from := time.Duration(0); from < end; from += 10 * time.Second {
			if n := between(w.refused, from, from+10*time.Second); n > 450 {
				rt.Fatalf("%d calls refused in the ten seconds from %v on\n%s", n, from, strings.Join(got, "\n"))
			}
		}
	})
}
