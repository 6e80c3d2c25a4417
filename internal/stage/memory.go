package stage

import "github.com/llm-stage/stage/internal/config"

const (
	// memoryBase is the heap of a process without rows and calls, and some room for events on their way.
	memoryBase = 20 << 20
	// memoryPerCall is what a call in flight takes: connection, buffers, request and reply of the usual size.
	memoryPerCall = 128 << 10
)

// MemoryLimit is the memory that run needs with cfg at most, in bytes, and that the garbage collector is told to keep to.
// Each partition has a window of its own, and the last replica serves them all. The chart does the same sum to see whether
// that fits into a pod (llm-stage.windowRoom).
//
// Left alone it lets the heap grow to twice what is in use, so that a full window took twice STAGE_WINDOW_BYTES. The limit
// is a soft one: a process that needs more takes more.
//
// GOMEMLIMIT sets another.
func MemoryLimit(cfg *config.Config) int64 {
	windows := int64(cfg.Streams.Partitions) * int64(cfg.Window.Bytes)
	return windows + windows/16 + int64(cfg.Pool.Size)*memoryPerCall + memoryBase
}
