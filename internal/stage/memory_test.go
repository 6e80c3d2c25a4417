package stage

import (
	"testing"

	"github.com/llm-stage/stage/internal/config"
)

func TestTheMemoryLimitFollowsTheSettings(t *testing.T) {
	for _, c := range []struct {
		name       string
		partitions int
		window     config.Size
		pool       int
		want       int64
	}{
		{"the defaults", 1, 256 << 20, 1, 272<<20 + 128<<10 + 20<<20},
		{"a window for each partition", 4, 64 << 20, 64, 272<<20 + 8<<20 + 20<<20},
	} {
		cfg := new(config.Config)
		cfg.Streams.Partitions, cfg.Window.Bytes, cfg.Pool.Size = c.partitions, c.window, c.pool
		if got := MemoryLimit(cfg); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}
