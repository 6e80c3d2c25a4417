package aimd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// On a server that queues, the law finds the number of calls that it works at within half a minute: the throughput is
// that of a pool of just this size, calls take hardly longer, and a guest hardly waits.
func TestQueueIsFound(t *testing.T) {
	for _, c := range []struct {
		pool, slots int
		sigma       float64
	}{
		{16, 4, 0.3},
		{16, 8, 0.3},
		{64, 8, 0.3},
		{256, 8, 0.3},
		{64, 16, 0.3},
		{256, 48, 0.3},
		{64, 8, 1},
		{256, 16, 1},
	} {
		t.Run(fmt.Sprintf("pool=%d/slots=%d/sigma=%g", c.pool, c.slots, c.sigma), func(t *testing.T) {
			best := newQueueing(t, c.slots, c.slots, c.sigma)
			best.law.cfg.KeepConcurrency = true
			best.run(180)
			q := newQueueing(t, c.pool, c.slots, c.sigma)
			q.run(180)
			want, got, alone := best.figures(30, 180), q.figures(30, 180), 100/q.speed(1)
			if got.tokensPerSec < 0.95*want.tokensPerSec || got.p95 > 1.3*want.p95 || alone+got.guest > 1.3*(alone+want.guest) {
				t.Errorf("%+v, the best is %+v; concurrency %v", got, want, q.trace)
			}
		})
	}
}

// Replies without a length make it slower to learn, but cost no throughput.
func TestQueueWithoutLengths(t *testing.T) {
	q := newQueueing(t, 64, 8, 0.3)
	q.unknown = true
	q.run(240)
	f := q.figures(120, 240)
	if f.tokensPerSec < 0.95*2000 || q.law.Stats().Concurrency > 16 || q.law.Stats().Concurrency == 0 {
		t.Errorf("%+v, concurrency %v", f, q.trace)
	}
}

// A server that gets four times the slots is used within a minute, one that gets faster or slower goes on as before.
func TestQueueFollowsTheServer(t *testing.T) {
	q := newQueueing(t, 256, 8, 0.3)
	q.run(120)
	q.slots = 32
	q.run(240)
	if f := q.figures(180, 240); f.tokensPerSec < 0.95*8000 {
		t.Errorf("%.0f tokens/s of 8000 a minute after the rise; concurrency %v", f.tokensPerSec, q.trace)
	}
	q.slots = 8
	q.run(360)
	if f := q.figures(270, 360); f.tokensPerSec < 0.95*2000 || q.law.Stats().Concurrency > 12 {
		t.Errorf("%.0f tokens/s of 2000 after the fall; concurrency %v", f.tokensPerSec, q.trace)
	}

	q = newQueueing(t, 64, 8, 0.3)
	speed := q.speed
	q.run(100)
	for i, factor := range []float64{2, 0.5} {
		q.speed = func(n int) float64 { return factor * speed(n) }
		from := q.now
		q.run(from + 120)
		if f := q.figures(from+30, q.now); f.tokensPerSec < 0.95*2000*factor {
			t.Errorf("change %d: %.0f tokens/s of %.0f; concurrency %v", i, f.tokensPerSec, 2000*factor, q.trace)
		}
	}
}

// Neither short replies nor long ones pass for a queue, nor a change between them.
func TestQueueKnowsLongReplies(t *testing.T) {
	q := newQueueing(t, 64, 8, 0.3)
	q.before, q.guestAt = 0.2, math.Inf(1)
	for i, mean := range []float64{20, 400, 20} {
		q.tokens = lognormal(q.rng, mean, 0.5)
		from := q.now
		q.run(from + 150)
		best := mean * 8 / (0.2 + mean/250)
		if f := q.figures(from+60, q.now); f.tokensPerSec < 0.95*best {
			t.Errorf("change %d: %.0f tokens/s of %.0f; concurrency %v", i, f.tokensPerSec, best, q.trace)
		}
	}
}

// A server that works at all calls, if slower for each, is not throttled: as measured for vLLM, its throughput grows
// with their number, though not evenly.
func TestBatchesAreNotAQueue(t *testing.T) {
	measured := [][2]float64{{1, 277}, {8, 1881}, {16, 3455}, {32, 3798}, {64, 8120}, {128, 11556}, {256, 15552}}
	speed := func(n int) float64 {
		x := max(1, float64(n))
		for i := 1; ; i++ {
			if a, b := measured[i-1], measured[i]; x <= b[0] {
				return a[1] * math.Pow(b[1]/a[1], math.Log(x/a[0])/math.Log(b[0]/a[0])) / x
			}
		}
	}
	for _, pool := range []int{16, 64, 200} {
		q := newQueueing(t, pool, 256, 1)
		q.speed = speed
		q.run(120)
		if f, best := q.figures(30, 120), speed(pool)*float64(pool); f.tokensPerSec < 0.95*best {
			t.Errorf("pool %d: %.0f tokens/s of %.0f; concurrency %v", pool, f.tokensPerSec, best, q.trace)
		}
	}
}

// Where there is no queue, none is found: calls of any duration and length, small pools, servers that refuse.
func TestNoQueueIsFound(t *testing.T) {
	for _, pool := range []int{8, 64} {
		for _, speed := range []float64{50, 100000} { // 2 s and 1 ms
			for _, unknown := range []bool{false, true} {
				q := newQueueing(t, pool, 10000, 1)
				q.speed, q.unknown = func(int) float64 { return speed }, unknown
				q.rows = 20000
				q.run(120)
				for _, n := range q.trace {
					if n != 0 {
						t.Fatalf("pool %d, %g tokens/s, unknown %v: concurrency %v", pool, speed, unknown, q.trace)
					}
				}
			}
		}
	}
	small := newQueueing(t, 4, 1, 0.3)
	small.run(60)
	apart := newQueueing(t, 64, 8, 0.3)
	apart.law.cfg.KeepConcurrency = true
	apart.run(60)
	refusing := newWorld(t, atRandom(0.2))
	refusing.run(2 * time.Minute)
	for _, law := range []*Adaptive{small.law, apart.law, refusing.law} {
		if n := law.Stats().Concurrency; n != 0 {
			t.Errorf("concurrency %d with %+v", n, law.cfg)
		}
	}
}

// What was learned outlives a pause in the work and an outage; work that comes in small portions is enough to learn it.
func TestQueueIsRemembered(t *testing.T) {
	q := newQueueing(t, 64, 8, 0.3)
	q.run(60)
	q.rows = 0
	q.run(90)
	q.law.Restart(q.at())
	if n := q.law.Stats().Concurrency; n < 6 || n > 12 {
		t.Errorf("concurrency %d after the outage, want about 8: %v", n, q.trace)
	}
	q.rows = math.MaxInt
	q.run(180)
	if f := q.figures(100, 180); f.tokensPerSec < 0.95*2000 {
		t.Errorf("%.0f tokens/s after the outage; concurrency %v", f.tokensPerSec, q.trace)
	}

	q = newQueueing(t, 64, 8, 0.3)
	for end := 20.0; end <= 400; end += 20 {
		q.rows = 150
		q.run(end)
	}
	if n := q.law.Stats().Concurrency; n < 6 || n > 16 {
		t.Errorf("concurrency %d by small portions, want about 8: %v", n, q.trace)
	}
}

// A server that no longer reports lengths, and one whose calls all fail for a while, do not leave the law with a bound
// that it cannot raise.
func TestQueueRecoversFromSilence(t *testing.T) {
	q := newQueueing(t, 64, 8, 0.3)
	q.run(60)
	q.unknown = true
	q.run(120)
	q.slots = 32
	q.run(300)
	if f := q.figures(240, 300); f.tokensPerSec < 0.9*8000 {
		t.Errorf("%.0f tokens/s of 8000; concurrency %v", f.tokensPerSec, q.trace)
	}
}

// The first call of a law that is told nothing, and calls that wait for their turn or not.
func TestCohortsCompare(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	measure := func(level, n int, sec func(tokens float64) float64) *cohort {
		c := &cohort{}
		for range n {
			tokens := math.Round(100 * math.Exp(rng.NormFloat64()))
			c.sent++
			c.level += float64(level)
			c.add(tokens, sec(tokens)*(1+0.01*rng.NormFloat64()))
		}
		return c
	}
	alone := measure(4, 50, func(n float64) float64 { return 0.1 + n/100 })
	waits := measure(16, 50, func(n float64) float64 { return 3.1 + n/100 })
	slow := measure(16, 50, func(n float64) float64 { return 0.1 + 4*n/100 })
	if sec, err := waits.waits(alone); math.Abs(sec-3) > 0.1 || err > 0.1 {
		t.Errorf("calls that wait 3 s wait %.2f ± %.2f", sec, err)
	}
	if sec, err := slow.waits(alone); math.Abs(sec) > 0.2 || err > 0.2 {
		t.Errorf("calls that are slow wait %.2f ± %.2f", sec, err)
	}
	if log, err := slow.slower(alone); math.Abs(math.Exp(log)-4) > 0.4 || err > 0.05 {
		t.Errorf("calls that are four times slower are %.2f ± %.2f times slower", math.Exp(log), err)
	}
	q := queue{low: *alone}
	mean := waits.mean()
	if need, want := q.need(waits, 1.2), 16*(mean-3)/mean; math.Abs(need-want) > 1 {
		t.Errorf("%.1f attempts in flight are enough, want %.1f", need, want)
	}
	if q.need(slow, 1.2) != 0 || q.need(alone, 1.2) != 0 {
		t.Error("a queue where calls don't wait")
	}
}

// Whatever happens, the bound is one of the pool, and never keeps the only call from going.
func TestQueueInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := rapid.IntRange(5, 40).Draw(t, "pool")
		law, err := NewAdaptive(AdaptiveConfig{Config: Default(), PoolSize: pool})
		if err != nil {
			t.Fatal(err)
		}
		now := at(0)
		var tickets []Ticket
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 500).Draw(t, "pass")) * ms)
			for len(tickets) < pool && !law.Next(now, len(tickets)).After(now) {
				tickets = append(tickets, law.Sent(now, len(tickets)+1))
			}
			if len(tickets) == 0 {
				if law.queue.full(0) {
					t.Fatalf("nothing is in flight, and nothing may go: %+v", law.queue)
				}
				continue
			}
			i := rapid.IntRange(0, len(tickets)-1).Draw(t, "which")
			ticket := tickets[i]
			tickets = append(tickets[:i], tickets[i+1:]...)
			ticket.Output = int64(rapid.IntRange(-1, 1000).Draw(t, "output"))
			switch rapid.IntRange(0, 29).Draw(t, "what") {
			case 0:
				law.Rejected(now, ticket, Hint{})
			case 1:
				law.Dropped(now, ticket)
			case 2:
				law.Dropped(now, ticket)
				law.Restart(now)
			default:
				law.Accepted(now, ticket)
			}
			if n := law.Stats().Concurrency; n < 0 || n > pool {
				t.Fatalf("concurrency %d of a pool of %d", n, pool)
			}
			q := &law.queue
			for _, x := range []float64{q.low.sec, q.base.sec, q.given, q.next, q.rest} {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Fatalf("not a number in %+v", q)
				}
			}
		}
	})
}

// The law learns only where neither the rate nor refusals limit what is in flight, and what it can't check for long is
// no bound any more.
func TestQueueNeedsAnOpenServer(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Adaptive)
		want   bool
	}{
		"start":   {func(*Adaptive) {}, true},
		"paced":   {func(l *Adaptive) { l.phase, l.estimate, l.since = Cruise, 20, l.now }, false},
		"fast":    {func(l *Adaptive) { l.phase, l.estimate = Cruise, 1e6 }, true},
		"refuses": {func(l *Adaptive) { l.loss.share = 0.2 }, false},
		"slots":   {func(l *Adaptive) { l.slots.limit = 8 }, false},
	} {
		l := newQueueing(t, 64, 8, 0.3).law
		l.queue.bound = 8
		l.now = 2 * forgetSec
		c.change(l)
		if got := l.queue.canLearn(l); got != c.want {
			t.Errorf("%s: it can learn: %v", name, got)
		}
		l.queue.seen = 0
		var done cohort
		done.sent = 2
		done.add(1, 1)
		done.add(1, 1)
		if l.queue.learn(l, done); (l.queue.bound == 8) != c.want {
			t.Errorf("%s: the bound is %d after it could not be checked for two minutes", name, l.queue.bound)
		}
	}
}

// Each step down may cost little, but all of them together no more than queueLoss.
func TestQueueStepsAddUp(t *testing.T) {
	at := func(level int, sec float64) (c cohort) {
		for i := range 100 {
			c.sent++
			c.level += float64(level)
			c.add(float64(50+i), sec*float64(50+i))
		}
		return c
	}
	for _, c := range []struct {
		given float64
		want  int
	}{{0, 16}, {0.03, 20}} {
		l := newQueueing(t, 64, 8, 0.3).law
		q := &l.queue
		q.lengths, q.bound, q.given = true, 20, c.given
		q.low, q.base = at(4, 1), at(20, 1)
		q.trial = trial{bound: 16, kind: lower, step: 1.25, extended: trialExtensions, sum: at(16, 0.8*math.Exp(0.03)), retried: 2}
		q.judge(l, at(16, 0.8*math.Exp(0.03))) // three per cent less throughput
		if q.bound != c.want {
			t.Errorf("the bound is %d with %.2f given up before, want %d", q.bound, c.given, c.want)
		}
	}
}
