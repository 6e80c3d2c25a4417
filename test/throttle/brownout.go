package throttle

import (
	"context"
	"time"
)

// FallbackFigures are the results of a run with a fallback, or their mean over several.
type FallbackFigures struct {
	// PerSec is the calls that were accepted a second, by either server; Alone what the
	// first one alone accepts.
	PerSec, Alone float64
	// Share is the part of the accepted calls that the fallback served.
	Share float64
	// Waste is the refused calls as a share of all, by either server.
	Waste float64
}

// RunFallback runs the adaptive law with and without the fallback of a scenario.
func RunFallback(ctx context.Context, sc *Scenario, seed uint64) FallbackFigures {
	alone := newRun(sc, seed)
	alone.plan.fallback = nil
	alone.do(ctx, Adaptive)
	both := newRun(sc, seed)
	both.do(ctx, Adaptive)
	until := min(alone.ended, both.ended) // what the server offers later has no counterpart
	if m := both.plan.measured; m > 0 {
		until = min(until, m)
	}
	f := FallbackFigures{PerSec: float64(both.accepted(until, false)) / until, Alone: float64(alone.accepted(until, false)) / until}
	f.Share = float64(both.accepted(until, true)) / float64(both.accepted(until, false))
	f.Waste = 1 - float64(both.accepted(both.ended, false))/float64(len(both.arrivals))
	return f
}

// accepted counts the calls that were accepted until an instant, by the fallback only or
// by either server.
func (r *run) accepted(until float64, fallback bool) (n int) {
	for _, a := range r.arrivals {
		if a.accepted && a.at <= until && (a.fallback || !fallback) {
			n++
		}
	}
	return n
}

// at returns the server that a call goes to.
func (p *plan) at(id callID) server {
	if id.fallback {
		return p.fallback
	}
	return p.server
}

// fallingBack gives a scenario a fallback of 10/s, half of what the first usually allows.
func fallingBack(after time.Duration, setUp func(*Scenario, uint64) plan) func(*Scenario, uint64) plan {
	return func(sc *Scenario, seed uint64) plan {
		p := setUp(sc, seed)
		p.fallback, p.fallbackAfter = newBucket(schedule{{0, 10}}, 5), after
		return p
	}
}

// brownouts is a bucket of 20/s that has a tenth of it every other period.
func brownouts(period float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		shift := 4*chance(seed).Float64() - 2
		rate := schedule{{0, 20}}
		for t := period + shift; t < 8*period; t += 2 * period {
			rate = append(rate, step{t, 2}, step{t + period, 20})
		}
		return plan{server: newBucket(rate, 5), measured: 8 * period}
	}
}

// Fallbacks returns servers with a fallback: brown-outs, in which rows should go there,
// and normal operation, in which they should not.
func Fallbacks() []*Scenario {
	var list []*Scenario
	add := func(name string, after time.Duration, setUp func(*Scenario, uint64) plan, change ...func(*Scenario)) {
		change = append([]func(*Scenario){poolSize(64), rows(8000)}, change...)
		list = append(list, scenario(name, "", fallingBack(after, setUp), change...))
	}
	add("brown-out: 120 s of 20/s and of 2/s in turn, after 5 s", 5*time.Second, brownouts(120), rows(18000))
	add("brown-out: 600 s each, after 30 s", 30*time.Second, brownouts(600), rows(80000))
	add("20/s, after 1 s", time.Second, constant(20, 5))
	add("20/s, burst 200, after 5 s", 5*time.Second, constant(20, 200))
	add("1/s, after 5 s", 5*time.Second, constant(1, 5), rows(1000))
	add("20/s and 5/s in turn, 60 s each, after 5 s", 5*time.Second, alternating)
	add("20/s or 5/s at random, after 5 s", 5*time.Second, wandering)
	add("sine of 60 s, after 5 s", 5*time.Second, drifting(60))
	add("a fifth refused at random, after 5 s", 5*time.Second, noisy(0.2))
	add("8 at once, after 5 s", 5*time.Second, eightAtOnce)
	add(quotaWithFallback, 5*time.Second, quota)
	return list
}

// quotaWithFallback is out for some seconds of each minute, so that rows wait too long in
// normal operation, too.
const quotaWithFallback = "1200 in each minute, after 5 s"
