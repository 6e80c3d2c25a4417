package throttle

import (
	"math"
	"slices"
)

// FleetFigures are the results of a run of a fleet, or their mean over several. A figure
// that a fleet does not have is NaN.
type FleetFigures struct {
	// Utilisation, Waste and Jain are as in [Figures], Jain's index by weight and over
	// those that ran all the time and always wanted more.
	Utilisation, Waste, Jain float64
	// Over is the longest time, in seconds, in which each second had more calls than
	// twice what the server allowed. NaN for one that counts by the minute.
	Over float64
	// Heal is the longest time from the end of a partition until all followed one leader,
	// in seconds.
	Heal float64
	// Replace is the longest time from the death of a leader until most of the others
	// followed another, in seconds, and Killed the share of the limit that was used from
	// 2 s after the death on, for 2 s.
	Replace, Killed float64
	// Regain is the longest time from when some stopped until the rest used nine tenths
	// of the limit, in seconds.
	Regain float64
	// Messages is how many each member published per second.
	Messages float64
}

func (r *fleetRun) figures() FleetFigures {
	accepted, refused, perClient := r.split()
	offered := r.plan.server.offered(r.ended, r.sc.poolPerSec())
	f := FleetFigures{
		Utilisation: float64(len(accepted)) / offered,
		Waste:       float64(len(refused)) / float64(len(r.arrivals)),
		Jain:        r.jain(perClient),
		Over:        r.over(),
		Heal:        math.NaN(), Replace: math.NaN(), Killed: math.NaN(), Regain: math.NaN(),
	}
	for _, at := range r.fleet.heals {
		f.Heal = worst(f.Heal, r.until(at, func(s sample) bool { return s.leaders == 1 && s.agreed == s.running }))
	}
	for i, kill := range r.kills {
		before := r.at(kill - sampleSec).leader
		f.Replace = worst(f.Replace, r.until(kill, func(s sample) bool {
			return s.leader != before && 2*s.agreed > s.running
		}))
		window := r.plan.server.offered(kill+4, r.sc.poolPerSec()) - r.plan.server.offered(kill+2, r.sc.poolPerSec())
		used := float64(between(accepted, kill+2, kill+4)) / window
		f.Killed = sum(f.Killed*float64(i), used) / float64(i+1)
	}
	for _, at := range r.fleet.regains {
		f.Regain = worst(f.Regain, recovery(accepted, step{at, (r.plan.server.offered(at+10, math.Inf(1)) - r.plan.server.offered(at, math.Inf(1))) / 10}))
	}
	memberSeconds := 0.0
	for _, s := range r.samples {
		memberSeconds += float64(s.running) * sampleSec
	}
	f.Messages = float64(r.net.sent) / memberSeconds
	return f
}

// between counts the instants between two.
func between(sorted []float64, from, to float64) int {
	return before(sorted, to) - before(sorted, from)
}

// worst is the larger of a figure that may not have been set and x.
func worst(figure, x float64) float64 {
	if math.IsNaN(figure) || x > figure || math.IsNaN(x) {
		return x
	}
	return figure
}

// until returns the seconds from an instant to the first sample that is as asked;
// infinite: never.
func (r *fleetRun) until(from float64, ok func(sample) bool) float64 {
	for _, s := range r.samples {
		if s.at > from && ok(s) {
			return s.at - from
		}
	}
	return math.Inf(1)
}

// at returns the last sample that is not after an instant.
func (r *fleetRun) at(t float64) sample {
	i := max(0, int(t/sampleSec)-1)
	for i+1 < len(r.samples) && r.samples[i+1].at <= t {
		i++
	}
	return r.samples[min(i, len(r.samples)-1)]
}

// jain returns Jain's index by weight.
func (r *fleetRun) jain(perClient []float64) float64 {
	var shares []float64
	for client, n := range perClient {
		if !r.greedy[client] {
			continue
		}
		if r.fleet.weight != nil {
			n /= r.fleet.weight(client)
		}
		shares = append(shares, n)
	}
	return jain(shares)
}

// over returns the longest time of FleetFigures.Over. A server that is out allows what it
// did before: those are probes.
func (r *fleetRun) over() float64 {
	const stepSec = 0.1
	if _, window := r.plan.server.(*perMinute); window {
		return math.NaN() // all that a minute has may come at once
	}
	at := make([]float64, len(r.arrivals))
	for i, a := range r.arrivals {
		at[i] = a.at
	}
	slices.Sort(at)
	longest, since := 0.0, math.NaN()
	allowed := 0.0
	for t := 1.0; t < r.ended; t += stepSec {
		if now := r.plan.server.offered(t, math.Inf(1)) - r.plan.server.offered(t-1, math.Inf(1)); now > 0 {
			allowed = now
		}
		if float64(between(at, t-1, t)) <= 2*allowed+burstAllowed {
			since = math.NaN()
			continue
		}
		if math.IsNaN(since) {
			since = t
		}
		longest = max(longest, t-since+stepSec)
	}
	return longest
}

// burstAllowed is what may come at once beside that.
const burstAllowed = 10
