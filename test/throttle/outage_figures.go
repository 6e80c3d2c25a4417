package throttle

import (
	"context"
	"math"

	"github.com/llm-stage/stage/pool"
)

// OutageFigures are the results of a run against a server that breaks down, or their mean
// over several. A figure that a scenario does not have is NaN.
type OutageFigures struct {
	// Failed is how many rows failed in a run, but for poison.
	Failed float64
	// Wasted is how many calls of an outage reached a server and brought nothing, those
	// in flight at its beginning included; Refused how many connections were refused
	// besides.
	Wasted, Refused float64
	// Back is the time from the end of an outage to the first success after it, in
	// seconds; BackMost the longest.
	Back, BackMost float64
	// Utilisation is the calls served as a share of what the server could have served
	// while it was well, until each row had its first call: after that only retries are
	// left, which wait.
	Utilisation float64
	// Poison is how many poisoned rows failed as a share of all.
	Poison float64
}

// RunOutages is [Run] for a scenario of [Outages].
func RunOutages(ctx context.Context, sc *Scenario, m Method, seed uint64) OutageFigures {
	r := newRun(sc, seed)
	r.do(ctx, m)
	return r.outageFigures()
}

func (r *run) outageFigures() OutageFigures {
	var f OutageFigures
	poison := r.plan.poison
	if poison == nil {
		poison = func(int) bool { return false }
	}
	poisoned, dead := 0.0, 0.0
	for row := range r.sc.Rows {
		if poison(row) {
			poisoned++
		}
	}
	for _, row := range r.failed {
		if poison(row) {
			dead++
		} else {
			f.Failed++
		}
	}
	f.Poison = dead / poisoned
	f.Wasted, f.Refused = r.wasted()
	f.Back, f.BackMost = r.back()
	f.Utilisation = r.served()
	return f
}

// wasted returns how many calls an outage cost.
func (r *run) wasted() (wasted, refused float64) {
	met := 0.0
	for _, o := range r.plan.incidents.outages() {
		if o[0] >= r.ended {
			break
		}
		met++
		for _, a := range r.arrivals {
			if a.outcome.failure == nil || a.at >= o[1] || a.at+a.outcome.sec < o[0] || a.at < o[0] && !a.outcome.cut {
				continue
			}
			if a.outcome.failure.reached {
				wasted++
			} else {
				refused++
			}
		}
	}
	return wasted / met, refused / met // NaN without an outage
}

// back returns when the first call was served after an outage.
func (r *run) back() (mean, longest float64) {
	waits := 0.0
	longest = math.NaN()
	for _, o := range r.plan.incidents.outages() {
		first := math.Inf(1)
		for _, a := range r.arrivals {
			if a.outcome.verdict.Class == pool.OK && a.at >= o[1] {
				first = min(first, a.at+a.outcome.sec-o[1])
			}
		}
		if math.IsInf(first, 1) {
			break // the job was done before
		}
		waits++
		mean += first
		longest = most(longest, first)
	}
	return mean / waits, longest
}

// served returns the utilisation.
func (r *run) served() float64 {
	served, until, met := 0.0, 0.0, 0.0
	for _, a := range r.arrivals {
		if r.plan.measured > 0 && a.at >= r.plan.measured {
			break
		}
		if a.accepted {
			served++
		}
		if a.first {
			until, met = a.at, served
		}
	}
	offered := func(until float64) float64 { return r.plan.server.offered(until, r.sc.poolPerSec()) }
	return met / (offered(until) - r.plan.incidents.lost(until, offered))
}

// MeanOutages returns the mean of the figures of several runs, and of BackMost the most.
// What a run does not have counts in none.
func MeanOutages(runs []OutageFigures) OutageFigures {
	m := combine(runs, func(list []float64) float64 {
		total, n := 0.0, 0.0
		for _, x := range list {
			if !math.IsNaN(x) {
				total += x
				n++
			}
		}
		return total / n
	})
	m.BackMost = math.NaN()
	for _, f := range runs {
		m.BackMost = most(m.BackMost, f.BackMost)
	}
	return m
}

// most returns the larger of two figures, of which each may not exist.
func most(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	}
	return max(a, b)
}
