package pool_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/pool"
)

func TestNewNamesEveryFault(t *testing.T) {
	good := pool.Config{Size: 1, Retry: pool.DefaultRetry()}
	for _, test := range []struct {
		name   string
		change func(*pool.Config)
		want   []string // a part of each line
	}{
		{"the least that must be said", func(*pool.Config) {}, nil},
		{"zero value", func(c *pool.Config) { *c = pool.Config{} }, []string{"Size is 0", "Retry.MaxAttempts is 0", "Retry.BackoffFactor is 0"}},
		{"all at once", func(c *pool.Config) {
			*c = pool.Config{
				Size: -1, RowTimeout: -1, QueueLimit: -1, ProbeInterval: -1, FallbackAfter: -1,
				Retry: pool.RetryConfig{MaxAttempts: -1, BaseDelay: -1, BackoffFactor: 0.5, MaxDelay: -1},
			}
		}, []string{
			"Size", "Retry.MaxAttempts", "Retry.BaseDelay", "Retry.BackoffFactor", "Retry.MaxDelay",
			"RowTimeout", "QueueLimit", "FallbackAfter", "ProbeInterval",
		}},
		{"not a number", func(c *pool.Config) { c.Retry.BackoffFactor = math.NaN() }, []string{"Retry.BackoffFactor is NaN"}},
		{"infinite", func(c *pool.Config) { c.Retry.BackoffFactor = math.Inf(1) }, []string{"Retry.BackoffFactor is +Inf"}},
		{"no waits at all", func(c *pool.Config) { c.Retry.BaseDelay, c.Retry.MaxDelay = 0, 0 }, nil},
		{"durations", func(c *pool.Config) { c.RowTimeout, c.ProbeInterval = time.Second, time.Second }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := good
			test.change(&cfg)
			_, err := pool.New(cfg, script())
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(test.want) {
				t.Fatalf("%d faults, want %d: %v", len(lines), len(test.want), err)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(lines[i], "pool: "+want+" ") && !strings.HasPrefix(lines[i], "pool: "+want+",") {
					t.Errorf("fault %q, want %q in it", lines[i], want)
				}
			}
		})
	}
}
