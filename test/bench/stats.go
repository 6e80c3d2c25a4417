package main

import (
	"math"
	"slices"
	"time"
)

// median of figures, each for itself.
func median(all []figures) figures {
	pick := func(of func(figures) float64) float64 {
		list := make([]float64, len(all))
		for i, f := range all {
			list[i] = of(f)
		}
		return middle(list)
	}
	return figures{
		PerSec:  pick(func(f figures) float64 { return f.PerSec }),
		CPU:     pick(func(f figures) float64 { return f.CPU }),
		Allocs:  pick(func(f figures) float64 { return f.Allocs }),
		Bytes:   pick(func(f figures) float64 { return f.Bytes }),
		Server:  pick(func(f figures) float64 { return f.Server }),
		LLM:     pick(func(f figures) float64 { return f.LLM }),
		PeakMiB: pick(func(f figures) float64 { return f.PeakMiB }),
		LiveMiB: pick(func(f figures) float64 { return f.LiveMiB }),
		Group:   pick(func(f figures) float64 { return f.Group }),
	}
}

// middle is the median; NaN of nothing.
func middle(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	list = slices.Sorted(slices.Values(list))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// ratios is the median over rounds of one contender's figure divided by another's in the same round: a round on a busy
// machine is slow for both.
func ratios(own, other []figures, of func(figures) float64) float64 {
	list := make([]float64, len(own))
	for i := range own {
		list[i] = of(own[i]) / of(other[i])
	}
	return middle(list)
}

// percentile p of a sorted list is the least of it that p hundredths of it do not exceed; 0 of nothing.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
