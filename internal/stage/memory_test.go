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
		cfg.Lane = config.LaneConfig{Mode: "batch", Rows: 10_000, Open: 10, Bytes: 100 << 20}
		if got, want := MemoryLimit(cfg), c.want+int64(c.partitions)*(200<<20+20_000_000); got != want {
			t.Errorf("%s, with a batch lane: got %d, want %d", c.name, got, want)
		}
	}
}

func TestTheMemoryLimitOfSeveralStagesIsTheSum(t *testing.T) {
	cfg := new(config.Config)
	cfg.Streams.Partitions, cfg.Window.Bytes, cfg.Pool.Size = 1, 64<<20, 8
	if got, want := MemoryLimit(cfg, cfg, cfg), int64(20<<20+2*(4<<20)+3*(68<<20+1<<20)); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}

// A window of large rows gets room, so that the collector has something to collect; one of small rows does not.
func TestTheEmbeddedLimitFollowsTheWindow(t *testing.T) {
	for _, c := range []struct {
		name   string
		window int64
		calls  int
		live   int64
		want   int64
	}{
		{"nothing taken", 0, 1, 20 << 20, 158 << 20},
		{"a full window of small rows", 4096 * (2*1000 + 1024), 64, 60 << 20, 158 << 20},
		{"a full window of large rows", 256 << 20, 64, 300 << 20, 158<<20 + 2*(256-12)<<20},
		{"many calls", 0, 1064, 100 << 20, 158<<20 + 1000*(128<<10)},
		{"many results on their way through the server", 20 << 20, 8, 200 << 20, 300 << 20},
	} {
		if got := embeddedLimit(c.window, c.calls, c.live); got > c.want+c.want/100 || got < c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}
