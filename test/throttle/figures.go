package throttle

import (
	"math"
	"reflect"
	"slices"
)

// Figures are the results of a run, or their mean over several. A figure that a scenario
// does not have is NaN.
type Figures struct {
	// Utilisation is the accepted calls as a share of what the server offered until the
	// last of them, where the pools could have used it. It may exceed 1 by what the
	// server's bucket held at first.
	Utilisation float64
	// Waste is the refused calls as a share of all.
	Waste float64
	// Seconds is how long the job took.
	Seconds float64
	// RowP99 is the 99th percentile of the time from a row's first attempt to its result,
	// by that of accepted calls.
	RowP99 float64
	// LongestRow is the longest such time, in seconds.
	LongestRow float64
	// HeadOfLine is the longest time that a result waited for an earlier row's, in
	// seconds.
	HeadOfLine float64
	// RiseSeconds is how long after a rise of the rate the throughput of the next second
	// had nine tenths of it, on average; OutageSeconds the same after an outage.
	RiseSeconds, OutageSeconds float64
	// Probes is how many calls were refused in an outage.
	Probes float64
	// Jain is Jain's index of the clients' accepted calls: 1 when all have the same.
	Jain float64
}

// figures adds up what happened.
func (r *run) figures() Figures {
	accepted, refused, perClient := r.split()
	until := r.ended
	if r.sc.Clients == 1 && r.ended != r.plan.ends {
		until = accepted[len(accepted)-1] // the last calls end when they end, and that is not the law's doing
	}
	f := Figures{
		Utilisation:   float64(len(accepted)) / r.plan.server.offered(until, r.sc.poolPerSec()),
		Waste:         float64(len(refused)) / float64(len(accepted)+len(refused)),
		Seconds:       r.ended,
		RiseSeconds:   math.NaN(),
		OutageSeconds: math.NaN(),
		Probes:        math.NaN(),
		Jain:          jain(perClient),
	}
	f.RowP99, f.LongestRow, f.HeadOfLine = r.waits()
	for _, rise := range r.plan.rises {
		if rise.from+10 < until {
			f.RiseSeconds = sum(f.RiseSeconds, recovery(accepted, rise))
		}
	}
	if n := len(r.plan.rises); n > 0 {
		f.RiseSeconds /= float64(r.risesBefore(until - 10))
	}
	for _, o := range r.plan.outages {
		if o[1]+10 < until {
			f.OutageSeconds = sum(f.OutageSeconds, recovery(accepted, step{o[1], 20}))
			f.Probes = sum(f.Probes, float64(before(refused, o[1])-before(refused, o[0])))
		}
	}
	return f
}

// split returns the instants of accepted and refused calls, and how many calls of each
// client were accepted.
func (r *run) split() (accepted, refused, perClient []float64) {
	perClient = make([]float64, r.sc.Clients)
	for _, a := range r.arrivals {
		if a.accepted {
			accepted = append(accepted, a.at)
			perClient[a.client]++
		} else {
			refused = append(refused, a.at)
		}
	}
	return accepted, refused, perClient
}

// waits returns the figures of the rows, over all clients.
func (r *run) waits() (p99, longest, headOfLine float64) {
	var waits []float64
	for _, rows := range r.rows {
		emitted := 0.0
		for _, row := range rows {
			if row.finished == 0 {
				break // the run ended first; later rows waited for one whose end is unknown
			}
			waits = append(waits, row.finished-row.started)
			emitted = max(emitted, row.finished)
			headOfLine = max(headOfLine, emitted-row.finished)
		}
	}
	if len(waits) == 0 { // the first row was never done
		return math.NaN(), math.NaN(), headOfLine
	}
	slices.Sort(waits)
	slices.Sort(r.callSecs)
	return percentile99(waits) / percentile99(r.callSecs), waits[len(waits)-1], headOfLine
}

func percentile99(sorted []float64) float64 { return sorted[len(sorted)*99/100] }

func (r *run) risesBefore(t float64) int {
	n := 0
	for _, rise := range r.plan.rises {
		if rise.from < t {
			n++
		}
	}
	return n
}

// recovery returns the seconds after which the throughput had nine tenths of a new rate.
func recovery(accepted []float64, rise step) float64 {
	for i := before(accepted, rise.from); i < len(accepted); i++ {
		if float64(before(accepted, accepted[i]+1)-i) >= 0.9*rise.rate {
			return accepted[i] - rise.from
		}
	}
	return math.NaN()
}

// before counts the instants before t.
func before(sorted []float64, t float64) int {
	n, _ := slices.BinarySearch(sorted, t)
	return n
}

func jain(shares []float64) float64 {
	total, squares := 0.0, 0.0
	for _, x := range shares {
		total += x
		squares += x * x
	}
	return total * total / (float64(len(shares)) * squares)
}

// sum adds x to a figure that may not have been set yet.
func sum(figure, x float64) float64 {
	if math.IsNaN(figure) {
		return x
	}
	return figure + x
}

// Mean returns the mean of the figures of several runs.
func Mean(runs []Figures) Figures {
	return combine(runs, average)
}

func average(list []float64) (mean float64) {
	for _, x := range list {
		mean += x / float64(len(list))
	}
	return mean
}

// combine returns the figures that of makes of each figure of several runs. All fields of
// F are figures.
func combine[F any](runs []F, of func([]float64) float64) (all F) {
	to := reflect.ValueOf(&all).Elem()
	for i := range to.NumField() {
		list := make([]float64, len(runs))
		for j, f := range runs {
			list[j] = reflect.ValueOf(f).Field(i).Float()
		}
		to.Field(i).SetFloat(of(list))
	}
	return all
}
