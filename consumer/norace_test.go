//go:build !race

package consumer_test

import "time"

const (
	oneStepIn = 1 // is the last of a process
	aLongTime = time.Hour
)
