package stagetest

import "testing"

// Runs returns how many seeds a simulation runs: as many as its flag asks for, else few with -short, and more without.
func Runs(asked, few, more int) int {
	switch {
	case asked > 0:
		return asked
	case testing.Short():
		return few
	default:
		return more
	}
}
