package throttle

import (
	"math"
	"time"
)

// NightRows are the rows of the job that the project's documents describe.
const NightRows = 100_000

// Night returns the job that the documents describe, with so many rows and a pool of so
// many slots: calls take 1.2 s on average, and the server allows 20 calls a second, at
// times 5. With one slot the calls are made one after the other.
func Night(rows, slots int) *Scenario {
	const sigma = .3
	mean := 1.2 / math.Exp(sigma*sigma/2) // the median of times whose mean is 1.2 s
	return scenario("night", "20/s and 5/s in turn, 60 s each", alternating, func(sc *Scenario) {
		sc.Rows, sc.Pool, sc.Median, sc.Sigma = rows, slots, time.Duration(mean*float64(time.Second)), sigma
	})
}
