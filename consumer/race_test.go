//go:build race

package consumer_test

import "time"

// Under the race detector the simulations are seven times as slow. What they check a run without it has checked in full;
// what only the detector finds is in less of it, too.
const (
	oneStepIn = 3 // is the last of a process, in turn with the manners
	aLongTime = 15 * time.Minute
	laneRows  = 120
	laneTime  = 20 * time.Minute
)
