//go:build !race

package throttle

const underRace = false
