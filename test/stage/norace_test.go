//go:build !race

package stage_test

// simFaults is how many faults a seed draws.
const simFaults = 25
