package stagetest

import "testing"

// Runs returns how many seeds a simulation runs: as many as its flag asks for, else few
// with -short, and more without.
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

// Stride returns how far apart the cases of a long list are that a test tries: n with
// -short, else 1, which is all of them.
func Stride(n int) int {
	if testing.Short() {
		return n
	}
	return 1
}
