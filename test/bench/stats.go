package main

import (
	"math"
	"reflect"
	"slices"
	"time"
)

// median returns the median of each figure.
func median(all []figures) (m figures) {
	to := reflect.ValueOf(&m).Elem()
	for i := range to.NumField() {
		list := make([]float64, len(all))
		for j, f := range all {
			list[j] = reflect.ValueOf(f).Field(i).Float()
		}
		to.Field(i).SetFloat(middle(list))
	}
	return m
}

// middle is the median; NaN of nothing.
func middle(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	list = slices.Sorted(slices.Values(list))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// ratios is the median over rounds of one contender's figure divided by another's in the
// same round: a round on a busy machine is slow for both.
func ratios(own, other []figures, of func(figures) float64) float64 {
	list := make([]float64, len(own))
	for i := range own {
		list[i] = of(own[i]) / of(other[i])
	}
	return middle(list)
}

// percentile p of a sorted list is the least of it that p hundredths of it do not exceed;
// 0 of nothing.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
