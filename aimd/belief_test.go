package aimd

import (
	"math"
	"testing"
	"time"
)

func TestABeliefReadsAsASentence(t *testing.T) {
	now := at(time.Hour)
	for _, tt := range []struct {
		belief Belief
		want   string
	}{
		{Belief{}, ""},
		{Belief{Measured: true}, "no limit seen yet"},
		{Belief{Measured: true, Random: .2}, "no limit seen yet, 20% of calls refused at random"},
		{Belief{Measured: true, Limit: 20, Low: 18.2, High: 22.4, Met: now, Random: .03}, "limit about 20/s (18-22), 3% of calls refused at random"},
		{Belief{Measured: true, Limit: 20, Low: 18.2, High: 22.4, Met: now.Add(-59 * time.Second)}, "limit about 20/s (18-22)"},
		{Belief{Measured: true, Limit: 20, Low: 18.2, High: 22.4, Met: now.Add(-61 * time.Minute)}, "limit about 20/s (18-22) when last met, 1h1m ago"},
		{Belief{Measured: true, Limit: 1.04, Low: 0, High: 1.32, Met: now, Random: .004}, "limit about 1.0/s (0.00-1.3), 0.4% of calls refused at random"},
		{Belief{Measured: true, Limit: .214, Low: .19, High: .3, Met: now}, "limit about 0.21/s (0.19-0.30)"},
		{Belief{Measured: true, Limit: 1234.4, Low: 1234.4, High: 1234.4, Met: now}, "limit about 1234/s"},
		{Belief{Measured: true, Limit: 50, Shared: true}, "limit about 50/s for all together"},
		{Belief{Measured: true, InFlight: 8}, "no more than 8 calls at once are accepted"},
		{Belief{Measured: true, InFlight: 8, Limit: 20, Low: 19, High: 25, Met: now}, "limit about 20/s (19-25), no more than 8 calls at once are accepted"},
	} {
		if got := tt.belief.Text(now); got != tt.want {
			t.Errorf("%+v\ngot  %q\nwant %q", tt.belief, got, tt.want)
		}
	}
}

// What the law believes is true, and it makes use of it; it believes nothing before it knows.
func TestTheLawBelievesWhatIsTrue(t *testing.T) {
	belief := func(t *testing.T, admit func(time.Duration, int) bool, run time.Duration) (Belief, *world) {
		t.Helper()
		w := newWorld(t, admit)
		w.run(run)
		return w.law.Stats().Belief, w
	}
	t.Run("nothing at first", func(t *testing.T) {
		b, w := belief(t, always, 0)
		w.run(10 * time.Minute)
		for _, b := range []Belief{b, w.law.Stats().Belief} {
			if b != (Belief{Measured: true}) {
				t.Errorf("%+v of a server without a limit", b)
			}
		}
	})
	for _, rate := range []float64{1, 5, 20} {
		b, w := belief(t, bucket(rate, 5), 200*time.Second)
		sent, refused := float64(len(w.sent)), float64(len(w.refused))
		if used, waste := (sent-refused)/(200*rate), refused/sent; used < 0.98 || waste > 0.35/math.Sqrt(rate) {
			t.Errorf("%v/s: used %.3f of the rate, %.3f of the calls refused", rate, used, waste)
		}
		switch {
		case math.Abs(b.Limit-rate) > .25*rate, b.Low > rate, b.High < rate, b.Low > b.Limit, b.High < b.Limit, b.High > 3*rate:
			t.Errorf("a limit of %v/s: %+v", rate, b)
		case b.Met.Before(at(100*time.Second)) || b.Met.After(at(w.now)):
			t.Errorf("a limit of %v/s was met at %v", rate, b.Met)
		case b.Random > .02:
			t.Errorf("a limit of %v/s alone: %+v", rate, b)
		}
	}
	t.Run("a limit that has gone", func(t *testing.T) {
		b, w := belief(t, after(time.Minute, bucket(20, 5), always), 3*time.Minute)
		if b.Limit == 0 || b.Met.After(at(time.Minute)) {
			t.Errorf("it was met at %v last: %+v", b.Met, b)
		}
		w.law.Restart(at(w.now))
		if b := w.law.Stats().Belief; b.Limit != 0 {
			t.Errorf("after an outage: %+v", b)
		}
	})
	t.Run("noise", func(t *testing.T) {
		b, _ := belief(t, atRandom(.2), time.Minute)
		if math.Abs(b.Random-.2) > .08 || b.Limit != 0 {
			t.Errorf("a fifth refused at random: %+v", b)
		}
	})
	t.Run("sporadic refusals", func(t *testing.T) {
		w := newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 128}, atRandom(.02))
		w.reply = 200 * ms
		w.run(time.Minute)
		if b := w.law.Stats().Belief; math.Abs(b.Random-.02) > .012 {
			t.Errorf("one in fifty refused: %+v", b)
		}
	})
	t.Run("calls at once", func(t *testing.T) {
		b, _ := belief(t, func(_ time.Duration, inFlight int) bool { return inFlight <= 8 }, time.Minute)
		if b.InFlight < 7 || b.InFlight > 9 || b.Limit != 0 {
			t.Errorf("eight calls at once: %+v", b)
		}
	})
}
