package consumer_test

import (
	"testing"
	"time"
)

// A group of the whole window would leave the stage without rows to work on until the group is stored.
func TestAGroupLeavesRoomInTheWindow(t *testing.T) {
	const window, most = 200, 50
	virtual(t, func(t *testing.T) {
		b := newBench(t)
		b.load(window)
		cfg := b.config("run", &sleeper{latency: func(seq uint64) time.Duration {
			if seq == 1 {
				return 10 * time.Second
			}
			return time.Second
		}})
		cfg.WindowRows = window
		b.startWith(cfg).stopAfter(b, window)
		groups := make(map[string]int)
		for _, m := range b.read("RESULTS", "results.stage.0.rows") {
			if id := m.Headers().Get("Nats-Batch-Id"); id != "" {
				groups[id]++
			}
		}
		if len(groups) == 0 {
			t.Error("no result was stored in a batch")
		}
		for id, rows := range groups {
			if rows > most {
				t.Errorf("batch %s has %d of the window's %d rows, want at most %d", id, rows, window, most)
			}
		}
	})
}
