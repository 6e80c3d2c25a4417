//go:build !race

package consumer_test

import "time"

const (
	oneStepIn = 1 // is the last of a process
	aLongTime = time.Hour
	// laneRows are the rows of a test of the lane, which answers within laneTime.
	laneRows = 400
	laneTime = 4 * time.Hour
)
