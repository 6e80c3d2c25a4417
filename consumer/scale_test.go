package consumer_test

import (
	"testing"
	"time"
)

// scale is how much the tests of whole stories do.
type scale struct {
	seeds     int           // of the simulation
	rows      int           // of each seed
	oneStepIn int           // is the last of a process, in turn with the manners
	aLongTime time.Duration // that a call takes
	laneRows  int           // which the lane answers within laneTime
	laneTime  time.Duration
	kills     int // rows of a run that is killed again and again
}

// scaled returns little for each change and under the race detector, which finds what it finds in less, too. What the
// tests check, a run at night has checked in full.
func scaled() scale {
	if raced || testing.Short() {
		return scale{seeds: 2, rows: 240, oneStepIn: 4, aLongTime: 10 * time.Minute, laneRows: 80, laneTime: 6 * time.Minute, kills: 120}
	}
	return scale{seeds: 3, rows: 400, oneStepIn: 1, aLongTime: time.Hour, laneRows: 400, laneTime: 4 * time.Hour, kills: 1000}
}
