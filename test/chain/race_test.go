//go:build race

package chain_test

// fewRuns is how many seeds go test simulates.
const fewRuns = 1
