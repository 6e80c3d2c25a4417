package status

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/pool"
)

func TestWhatMoreSlotsWouldHaveBrought(t *testing.T) {
	const took = 100 * time.Second
	for _, tt := range []struct {
		name    string
		stats   pool.Stats
		maxSize int
		took    time.Duration
		want    string // how it begins, or empty if there is no advice
	}{
		{"full nearly all the time", pool.Stats{PoolSize: 16, Dispatched: 500, FullTime: 94 * time.Second}, 1000, took, "the pool was full 94% of the time: --pool-size 32 would take about half as long"},
		{"full half of the time", pool.Stats{PoolSize: 16, Dispatched: 500, FullTime: 50 * time.Second}, 1000, took, "the pool was full 50% of the time: --pool-size 32 would take about 25% less time"},
		{"a window that holds 24 rows", pool.Stats{PoolSize: 16, Dispatched: 500, FullTime: 90 * time.Second}, 24, took, "the pool was full 90% of the time: --pool-size 24 would take about 30% less time"},
		{"a window that holds no more", pool.Stats{PoolSize: 16, Dispatched: 500, FullTime: 90 * time.Second}, 16, took, ""},
		{"hardly ever full", pool.Stats{PoolSize: 16, Dispatched: 500, FullTime: 5 * time.Second}, 1000, took, ""},
		{
			"full, and refused",
			pool.Stats{PoolSize: 16, Dispatched: 500, CapacityRetries: 20, FullTime: 60 * time.Second, ThrottleTime: 30 * time.Second},
			1000, took,
			"the provider was the limit (20 refused calls, throttled 30% of the time): more slots would not help",
		},
		{"one refusal of many calls", pool.Stats{PoolSize: 16, Dispatched: 500, CapacityRetries: 1, FullTime: 90 * time.Second}, 1000, took, "the pool was full 90% of the time: "},
		{"a server that queues", pool.Stats{PoolSize: 16, Dispatched: 500, LawConcurrency: 4}, 1000, took, "the provider works on about 4 calls at once"},
		{"a limit of one's own", pool.Stats{PoolSize: 16, Dispatched: 500, ThrottleTime: 90 * time.Second}, 1000, took, "calls waited for the throttle or a limit 90% of the time: more slots would not help"},
		{"the throttle still finds the rate", pool.Stats{PoolSize: 16, Dispatched: 20, ThrottleTime: 2 * time.Second}, 1000, 2 * time.Second, ""},
		{"too short to tell", pool.Stats{PoolSize: 16, Dispatched: 500, FullTime: time.Second / 2}, 1000, time.Second / 2, ""},
		{"no call", pool.Stats{PoolSize: 16}, 1000, took, ""},
	} {
		got := SlotsAdvice(&tt.stats, tt.maxSize, tt.took)
		if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
