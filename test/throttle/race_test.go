//go:build race

package throttle

// Under the race detector a few fleets are enough: all run the same code, and the figures are held without it.
const underRace = true
