package stage

import (
	"context"
	"runtime/metrics"
	"time"

	"github.com/llm-stage/stage/internal/config"
)

const (
	// memoryBase is the heap of a process without rows and calls, with some room for
	// events being stored.
	memoryBase = 20 << 20
	// memoryPerStage is what each further stage in a process takes: its parts, and what
	// its page shows.
	memoryPerStage = 4 << 20
	// memoryPerCall is the heap of a call in flight: connection, buffers, request and
	// reply of the usual size.
	memoryPerCall = 128 << 10
	// memoryPerRow is what a row in the window takes beside its bytes and those of its
	// result.
	memoryPerRow = 1 << 10
	// memoryPerParked is what a row in a batch takes. Its body and its reply are in
	// streams.
	memoryPerParked = 200
	// EmbeddedMemory is what a process needs that serves a store itself, with
	// embeddedCalls calls in flight and embeddedWindow in the window at most, beside the
	// program's own pages. Some 60 MiB are in use. Most of what a heap that may double
	// holds beside them are blocks of 8 MiB that the server has read or written, until
	// the collector takes them.
	EmbeddedMemory = 158 << 20
	embeddedCalls  = 64
	embeddedWindow = 12 << 20
	// embeddedLook is the time between two looks at the window.
	embeddedLook = time.Second
)

// MemoryLimit returns the memory that run needs at most with the stages of a process, in
// bytes: the soft limit for the garbage collector. Without it the collector lets the heap
// grow to twice what is in use, so a full window would take twice STAGE_WINDOW_BYTES; a
// process that needs more still gets more. Each partition has its own window, and the
// last replica serves them all. The chart computes the same sum to check that it fits
// into a pod (llm-stage.windowRoom). GOMEMLIMIT takes precedence.
func MemoryLimit(stages ...*config.Config) int64 {
	limit := int64(memoryBase) + int64(len(stages)-1)*memoryPerStage
	for _, cfg := range stages {
		windows := int64(cfg.Streams.Partitions) * int64(cfg.Window.Bytes)
		limit += windows + windows/16 + laneMemory(cfg) + int64(cfg.Pool.Size)*memoryPerCall
	}
	return limit
}

// laneMemory returns what the batch lanes of all partitions need: one batch that gathers,
// one that is uploaded, and the places of the rows.
func laneMemory(cfg *config.Config) int64 {
	if !cfg.LaneOn() {
		return 0
	}
	return int64(cfg.Streams.Partitions) * (2*int64(cfg.Lane.Bytes) + int64(cfg.LaneRows())*memoryPerParked)
}

// LimitEmbedded calls limit with the memory that the process needs whose own server
// serves the stage, at once and whenever that has changed, until ctx ends. The settings
// do not say it: a full window takes what its rows do, and the server keeps blocks of
// what it has just stored.
func (v *view) LimitEmbedded(ctx context.Context, limit func(bytes int64)) {
	ticker := time.NewTicker(embeddedLook)
	defer ticker.Stop()
	for last := int64(0); ; {
		window := int64(0)
		for _, c := range v.consumers {
			st := c.Status()
			window += st.BufferedBytes + int64(st.Window)*memoryPerRow
		}
		if next := embeddedLimit(window, v.Cfg.Pool.Size, heapLive()); next < last-last/16 || next > last+last/16 {
			last = next
			limit(next)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// embeddedLimit returns the limit for a window of so many bytes: it and its way through
// the server. Where more is in use than that leaves room for, as with results of 20 KiB,
// of which the server stores tens of MiB a second, the limit is half above what is in use.
// A limit of what is in use would have the collector run without a pause: forty times a
// second, for half of the CPU of a row.
func embeddedLimit(window int64, calls int, live int64) int64 {
	planned := EmbeddedMemory + 2*max(0, window-embeddedWindow) + max(0, int64(calls)-embeddedCalls)*memoryPerCall
	return max(planned, live+live/2)
}

// heapLive returns the bytes that the last garbage collection has left in the heap.
func heapLive() int64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return int64(live[0].Value.Uint64()) //nolint:gosec // no heap is larger
}
