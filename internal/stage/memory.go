package stage

import "github.com/llm-stage/stage/internal/config"

const (
	// memoryBase is the heap of a process without rows and calls, with some room for events being stored.
	memoryBase = 20 << 20
	// memoryPerCall is the heap of a call in flight: connection, buffers, request and reply of the usual size.
	memoryPerCall = 128 << 10
)

// MemoryLimit returns the memory that run needs with cfg at most, in bytes: the soft limit for the garbage collector.
// Without it the collector lets the heap grow to twice what is in use, so a full window would take twice
// STAGE_WINDOW_BYTES; a process that needs more still gets more. Each partition has its own window, and the last replica
// serves them all. The chart computes the same sum to check that it fits into a pod (llm-stage.windowRoom).
// GOMEMLIMIT takes precedence.
func MemoryLimit(cfg *config.Config) int64 {
	windows := int64(cfg.Streams.Partitions) * int64(cfg.Window.Bytes)
	return windows + windows/16 + int64(cfg.Pool.Size)*memoryPerCall + memoryBase
}
