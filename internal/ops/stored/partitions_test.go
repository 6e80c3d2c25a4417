package stored_test

import (
	"testing"

	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// The logs count, and neither the configuration, nor positions of loads, nor marks of
// redrives, nor other stages.
func TestPartitionsAreThoseOfTheLogs(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	check := func(when string, want int) {
		t.Helper()
		if n, err := stored.Partitions(t.Context(), b.JS, b.Cfg); err != nil || n != want {
			t.Errorf("%s: got %d, %v; want %d", when, n, err, want)
		}
	}
	publish := func(subjects ...string) {
		for _, s := range subjects {
			b.Publish(&nats.Msg{Subject: s})
		}
	}
	check("empty", 1)
	publish("results.stage.load.rows", "results.stage.load.claim", "results.stage.redrive.9.4", "results.other.7.claim", "results.stage.x.rows")
	check("no log", 1)
	publish("results.stage.0.claim", "results.stage.2.claim", "results.stage.2.claim", "results.stage.2.rows", "results.stage.0.rows")
	check("claims", 3)
	publish("results.stage.10.rows")
	check("a log whose claims are gone", 11)
	b.Cfg.Streams.Partitions = 16
	check("more in the configuration", 16)
	b.Cfg.Streams.Partitions = 1
	for range 1500 { // more than a reader fetches at once
		publish("results.stage.3.rows")
	}
	publish("results.stage.12.claim")
	check("behind many results", 13)
	b.Drop("RESULTS")
	if _, err := stored.Partitions(t.Context(), b.JS, b.Cfg); err == nil {
		t.Error("want an error for a stream that does not exist")
	}
}
