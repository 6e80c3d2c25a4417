//go:build race

package stage_test

// simFaults is how many faults a seed draws. Under the race detector each takes seven times as long; what the simulation
// checks, a run without it has checked in full.
const simFaults = 8
