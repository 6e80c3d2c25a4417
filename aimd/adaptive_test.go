package aimd

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAdaptiveReportsEveryFaultOfItsConfig(t *testing.T) {
	_, err := NewAdaptive(AdaptiveConfig{Config: Config{Multiplier: 1}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"Multiplier", "RecoveryStep", "PoolSize"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("error %q does not name %s", err, field)
		}
	}
}

func TestAdaptiveStartsSlowlyAndSpeedsUp(t *testing.T) {
	w := newWorld(t, always)
	if got, want := w.law.Stats().CurrentDelay, 125*ms; got != want {
		t.Errorf("the first delay is %v, want %v", got, want)
	}
	w.run(1200 * ms) // before the first reply
	if got := len(w.sent); got < 19 || got > 24 {
		t.Errorf("%d calls in the time of one call, want 19 to 24: twice as fast every 0.6 s", got)
	}
}

func TestAdaptiveDoesNotPaceWhereThePoolIsTheLimit(t *testing.T) {
	for _, reply := range []time.Duration{ms, 1200 * ms} {
		w := newWorld(t, always)
		w.reply = reply
		w.run(2 * time.Second)
		full := between(w.sent, 1900*ms, 2*time.Second)
		if want := int(float64(w.slots) * 0.1 / w.reply.Seconds()); full < want*9/10 {
			t.Errorf("replies after %v: %d calls in the last tenth of two seconds, want %d: a full pool", reply, full, want)
		}
		if reply == ms && w.law.Stats().CurrentDelay != 0 {
			t.Errorf("replies after %v: the delay is %v, want none", reply, w.law.Stats().CurrentDelay)
		}
	}
}

func TestAdaptiveGivesWayOnceForOneBurst(t *testing.T) {
	w := newWorld(t, bucket(20, 5))
	w.run(30 * time.Second)
	for w.law.Phase() != Cruise {
		w.run(w.now + 10*ms)
	}
	// Five attempts at once, as a pool would send whose law did not pace. All are refused.
	var tickets []Ticket
	for range 5 {
		tickets = append(tickets, w.law.Sent(at(w.now), 20))
	}
	before := w.law.estimate
	for _, ticket := range tickets {
		w.law.Rejected(at(w.now+60*ms), ticket, Hint{})
	}
	if w.law.epoch.failures != 1 || w.law.estimate < before/2 {
		t.Errorf("gave way %d times, from %.1f/s to an estimate of %.1f/s; want once", w.law.epoch.failures, before, w.law.estimate)
	}
}

func TestAdaptiveTakesSilenceForAcceptance(t *testing.T) {
	w := newWorld(t, bucket(20, 5))
	w.run(10 * time.Second)
	for w.law.Phase() != Drain {
		w.run(w.now + ms)
	}
	refused := w.now
	for w.law.Phase() == Drain {
		w.run(w.now + ms)
	}
	if took := w.now - refused; took > 250*ms {
		t.Errorf("drain took %v, want less than 250ms: a call takes %v, but a refusal %v", took, w.reply, w.refuse)
	}
}

func TestAdaptiveFollowsARise(t *testing.T) {
	w := newWorld(t, after(60*time.Second, bucket(4.8, 5), bucket(20, 5)))
	w.run(70 * time.Second)
	for from := 60 * time.Second; from <= 68*time.Second; from += 100 * ms {
		if between(w.sent, from, from+time.Second)-between(w.refused, from, from+time.Second) < 18 {
			continue
		}
		if took := from - 60*time.Second; took > 4*time.Second {
			t.Errorf("found a rise from 5/s to 20/s after %v, want at most 4s", took)
		}
		return
	}
	t.Error("did not find a rise from 5/s to 20/s")
}

func TestAdaptiveFollowsAFall(t *testing.T) {
	w := newWorld(t, after(60*time.Second, bucket(20, 5), bucket(5, 1)))
	w.run(70 * time.Second)
	if n := between(w.refused, 60*time.Second, 63*time.Second); n > 30 { // 27 on average, a probe or two included
		t.Errorf("%d calls refused in the three seconds after a fall from 20/s to 5/s, want at most 30", n)
	}
	if n := between(w.refused, 63*time.Second, 70*time.Second); n > 7 {
		t.Errorf("%d calls refused in the next seven, want at most 7", n)
	}
}

func TestAdaptiveProbesAnOutageAndStartsAnew(t *testing.T) {
	w := newWorld(t, after(50*time.Second, bucket(20, 5), after(170*time.Second, never, bucket(20, 5))))
	w.run(200 * time.Second)
	if n := between(w.sent, 50*time.Second, 170*time.Second); n > 35 {
		t.Errorf("%d calls in an outage of 120 s, want at most 35", n)
	}
	if got, want := w.law.Stats().PeakDelay, 5*time.Second; got != want {
		t.Errorf("the peak delay is %v, want the longest allowed, %v", got, want)
	}
	if n := between(w.sent, 177*time.Second, 187*time.Second); n < 180 {
		t.Errorf("%d calls in ten seconds soon after the outage, want about 200", n)
	}
}

func TestAdaptiveDoesNotClimbWhileIdle(t *testing.T) {
	for name, busy := range map[string]time.Duration{"before the first refusal": time.Second, "at cruise": 20 * time.Second} {
		w := newWorld(t, bucket(20, 5))
		w.run(busy)
		slots := w.slots
		w.slots = 0 // as if there were no work
		w.run(busy + time.Minute)
		w.slots = slots
		w.run(busy + time.Minute + 3*time.Second)
		if n := between(w.refused, busy, w.now); n > 15 {
			t.Errorf("%s: %d calls refused in the three seconds after a minute without work, want at most 15", name, n)
		}
	}
}

func TestAdaptiveKeepsToItsBounds(t *testing.T) {
	cfg := AdaptiveConfig{Config: Default(), PoolSize: 32}
	cfg.MinDelay, cfg.MaxDelay = 100*ms, 2*time.Second
	for name, admit := range map[string]func(time.Duration, int) bool{"always": always, "never": never, "5/s": bucket(5, 5)} {
		w := newWorldWith(t, cfg, admit)
		w.run(60 * time.Second)
		if n, most := len(w.sent), 1+int(w.now/cfg.MinDelay); n > most {
			t.Errorf("%s: %d calls in a minute, want at most %d", name, n, most)
		}
		for i := 1; i < len(w.sent); i++ {
			if d := w.sent[i] - w.sent[i-1]; d > cfg.MaxDelay+ms {
				t.Errorf("%s: %v between two attempts, want at most %v", name, d, cfg.MaxDelay)
			}
		}
		if s := w.law.Stats(); s.CurrentDelay < cfg.MinDelay || s.PeakDelay > cfg.MaxDelay {
			t.Errorf("%s: stats %+v outside the bounds", name, s)
		}
	}
}

func TestAdaptiveWaitsInverselyToTheRecoveryStep(t *testing.T) {
	refusals := func(step time.Duration) int {
		cfg := AdaptiveConfig{Config: Default(), PoolSize: 32}
		cfg.MinDelay, cfg.RecoveryStep = ms, step
		w := newWorldWith(t, cfg, bucket(20, 5))
		w.run(400 * time.Second)
		return between(w.refused, 100*time.Second, w.now) // the usual loss is a guess before
	}
	none, slow, usual := refusals(0), refusals(25*ms), refusals(50*ms)
	if none*3 > slow*2 || slow*5 > usual*4 {
		t.Errorf("%d refusals with a step of 0, %d with 25ms, %d with 50ms", none, slow, usual)
	}
}

func TestDroppedAttemptsDoNotEndDrain(t *testing.T) {
	w := newWorld(t, bucket(20, 5))
	w.run(10 * time.Second)
	for w.law.Phase() != Drain {
		w.run(w.now + ms)
	}
	law, now := w.law, w.law.Next(at(w.now), 1)
	law.Dropped(now, law.Sent(now, 1))
	if law.Next(now.Add(time.Second), 0); law.Phase() != Drain {
		t.Errorf("the phase is %v although no attempt came through, want drain", law.Phase())
	}
}

// Whatever a pool and a server do, the law keeps its promises: it never asks for a time in the past or without end,
// and its statistics stay within the settings and add up.
func TestAdaptiveInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := AdaptiveConfig{
			Config: Config{
				MinDelay:     time.Duration(rapid.IntRange(0, 100).Draw(t, "min")) * ms,
				Multiplier:   rapid.Float64Range(1.1, 8).Draw(t, "multiplier"),
				RecoveryStep: time.Duration(rapid.IntRange(1, 500).Draw(t, "step")) * ms,
			},
			PoolSize: rapid.IntRange(1, 40).Draw(t, "pool"),
			Rand:     func() float64 { return 0.5 },
		}
		cfg.MaxDelay = cfg.MinDelay + time.Duration(rapid.IntRange(0, 5000).Draw(t, "max"))*ms
		law, err := NewAdaptive(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := at(0)
		var tickets []Ticket
		var accepted, refused uint64
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "pass")) * ms)
			next := law.Next(now, len(tickets))
			if next.Before(now) || next.After(now.Add(farSec*time.Second)) {
				t.Fatalf("at %v the next may go at %v", now, next)
			}
			pick := func() Ticket {
				i := rapid.IntRange(0, len(tickets)-1).Draw(t, "which")
				ticket := tickets[i]
				tickets = append(tickets[:i], tickets[i+1:]...)
				return ticket
			}
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case len(tickets) == 0 || what < 5 && len(tickets) < cfg.PoolSize:
				tickets = append(tickets, law.Sent(now, len(tickets)+1))
			case what < 7:
				law.Accepted(now, pick())
				accepted++
			case what < 9:
				law.Rejected(now, pick(), Hint{
					RetryAfter: time.Duration(rapid.IntRange(-1, 10).Draw(t, "after")) * time.Second,
					Remaining0: rapid.Bool().Draw(t, "remaining 0"),
					Reset:      time.Duration(rapid.IntRange(-1, 10).Draw(t, "reset")) * time.Second,
				})
				refused++
			default:
				law.Dropped(now, pick())
			}
			s := law.Stats()
			if s.Successes != accepted || s.CapacityRetries != refused || s.PeakDelay < s.CurrentDelay ||
				s.CurrentDelay < cfg.MinDelay || s.PeakDelay > cfg.MaxDelay {
				t.Fatalf("stats %+v with %+v after %d accepted and %d refused", s, cfg.Config, accepted, refused)
			}
		}
	})
}

func BenchmarkAdaptive(b *testing.B) {
	law, err := NewAdaptive(AdaptiveConfig{Config: Default(), PoolSize: 32})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	now := at(0)
	var i int
	for b.Loop() {
		now = law.Next(now, 5)
		ticket := law.Sent(now, 6)
		if i++; i%50 == 0 {
			law.Rejected(now, ticket, Hint{})
		} else {
			law.Accepted(now, ticket)
		}
	}
}
