package status

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/pool"
)

const (
	// slotsAfter is how long a run must have taken before its numbers say anything about
	// the pool's size.
	slotsAfter = time.Second
	// slotsRampUp is how long the throttle may take to find the rate of a new provider.
	// Within it calls wait for their turn although the provider would accept more.
	slotsRampUp = 10 * time.Second
	// slotsWorth is the share of time that more slots must save to be worth a line.
	slotsWorth = 0.1
)

// SlotsAdvice says what more slots of the pool would have brought to a run that took so
// long. If the pool was full and the provider refused nothing, the run would have taken
// less time. If the provider was the limit, nothing would have changed. It advises at
// most maxSize slots, and is empty where the numbers say neither. For example, a pool of
// 16 was full for 94 s of 100 s. With 32 slots these 94 s would have been 47 s, so the
// run would have taken about half as long.
func SlotsAdvice(p *pool.Stats, maxSize int, took time.Duration) string {
	if took < slotsAfter || p.Dispatched == 0 {
		return ""
	}
	full, throttled := share(p.FullTime, took), share(p.ThrottleTime, took)
	more := min(2*p.PoolSize, maxSize)
	saved := full * (1 - float64(p.PoolSize)/float64(max(more, p.PoolSize)))
	switch {
	case p.CapacityRetries*100 >= p.Dispatched:
		return fmt.Sprintf("the provider was the limit (%s, throttled %.0f%% of the time): more slots would not help",
			terminal.Plural(int(p.CapacityRetries), "refused call"), 100*throttled) //nolint:gosec // far below 2^63
	case p.LawConcurrency > 0 && p.LawConcurrency < p.PoolSize:
		return fmt.Sprintf("the provider works on about %d calls at once and lets others wait: more slots would not help", p.LawConcurrency)
	case saved >= 0.4:
		return fmt.Sprintf("the pool was full %.0f%% of the time: --pool-size %d would take about half as long, if the provider allows it", 100*full, more)
	case saved >= slotsWorth:
		return fmt.Sprintf("the pool was full %.0f%% of the time: --pool-size %d would take about %.0f%% less time, if the provider allows it", 100*full, more, 100*saved)
	case throttled >= 0.5 && took >= slotsRampUp:
		return fmt.Sprintf("calls waited for the throttle or a limit %.0f%% of the time: more slots would not help", 100*throttled)
	}
	return ""
}

// share returns part as a share of the whole, at most 1.
func share(part, whole time.Duration) float64 { return min(1, part.Seconds()/whole.Seconds()) }
