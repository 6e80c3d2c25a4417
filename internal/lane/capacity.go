package lane

import (
	"math"
	"time"
)

const (
	// capacityWaitFirst and capacityWaitMost bound the wait after a refusal for want of
	// room.
	capacityWaitFirst = time.Minute
	capacityWaitMost  = 30 * time.Minute
	// capacityStale is how long after a refusal the lane tries more than the limit that
	// it has learned: with a limit of 1,000 tokens, up to 1,250.
	capacityStale = time.Hour
)

// capacity is how many tokens of a model the provider takes into its queue, as far as its
// refusals have shown. The zero value knows nothing. It is pure.
type capacity struct {
	limit   int64 // tokens of all batches of the model, 0 if it is not known
	learned time.Time
	retry   time.Time // nothing is submitted before
	why     string    // the words of the last refusal
	wait    time.Duration
}

// room returns how many tokens a batch may have beside the queued ones, 0 at the moment
// if the provider has just refused one. With a limit of 1,000 tokens and 400 queued it is
// 600. Where the queue is empty there is always room for a try.
func (c *capacity) room(queued int64, now time.Time) int64 {
	switch {
	case now.Before(c.retry):
		return 0
	case c.limit == 0:
		return math.MaxInt64
	case queued == 0:
		return c.bound(now)
	}
	return max(0, c.bound(now)-queued)
}

func (c *capacity) bound(now time.Time) int64 {
	if now.Sub(c.learned) > capacityStale {
		return c.limit + c.limit/4
	}
	return c.limit
}

// refused learns that a batch was refused while so many tokens were in the queue. after
// is what the provider asks to wait. That a small batch alone is refused says nothing
// about the limit: others use the account, or something else is limited, such as batches
// an hour.
func (c *capacity) refused(queued, tokens int64, small bool, after time.Duration, now time.Time) {
	if queued > 0 || !small {
		c.limit, c.learned = max(1, queued+tokens/2), now
	}
	c.wait = min(max(2*c.wait, capacityWaitFirst), capacityWaitMost)
	c.retry = now.Add(max(c.wait, after))
}

// accepted learns that so many tokens are in the queue.
func (c *capacity) accepted(queued int64, now time.Time) {
	c.wait = 0
	if c.limit > 0 && queued > c.limit {
		c.limit, c.learned = queued, now
	}
}

// ended learns that a batch of so many tokens was answered: there may be room at once,
// and next time for more. A refusal costs little, and a limit that is too low costs a
// day.
func (c *capacity) ended(tokens int64) {
	c.retry, c.wait = time.Time{}, 0
	if c.limit > 0 && tokens > c.limit/2 {
		c.limit *= 2
	}
}
