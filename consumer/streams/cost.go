package streams

import "time"

// Cost is a moving average of the time that one append takes.
type Cost time.Duration

// Add takes one measurement. An outlier (an election, a stalled disk) counts as at most
// eight times the average: with an average of 2 ms, an append of 1 s counts as 16 ms.
func (c *Cost) Add(d time.Duration) {
	if *c > 0 {
		d = min(d, 8*time.Duration(*c))
	}
	*c += (Cost(d) - *c) / 4
}
