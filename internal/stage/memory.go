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
	// memoryPerStage is the memory of each further stage in a process: its parts, and the
	// history on its page.
	memoryPerStage = 4 << 20
	// memoryPerCall is the heap of a call in flight: connection, buffers, request and
	// reply of the usual size.
	memoryPerCall = 128 << 10
	// memoryPerRow is the memory of a row in the window besides its bytes and those of
	// its result.
	memoryPerRow = 1 << 10
	// memoryPerParked is the memory of a row in a batch: its place. Its body and its
	// reply are in streams.
	memoryPerParked = 200
	// EmbeddedMemory is the memory of a process that serves a store itself, with at most
	// embeddedCalls calls in flight and embeddedWindow bytes in the window, without the
	// pages of the program file. Some 60 MiB are live. A heap that may double holds as
	// much again, mostly blocks of 8 MiB that the server has read or written and the
	// collector has not yet taken.
	EmbeddedMemory = 158 << 20
	embeddedCalls  = 64
	embeddedWindow = 12 << 20
	// embeddedLook is the time between two looks at the window.
	embeddedLook = time.Second
)

// MemoryLimit returns the most memory that run needs with the stages of a process, in
// bytes. It is the soft limit for the garbage collector. Without it the collector lets
// the heap grow to twice its live size, so a full window would take twice
// STAGE_WINDOW_BYTES; a process that needs more still gets more. For example, a stage
// with one partition, a window of 256 MiB and a pool of 16 needs 20 + 256 + 16 + 2 = 294
// MiB.
//
// Each partition has its own window, and the last replica serves all of them. The chart
// computes the same sum to check that it fits into a pod (llm-stage.windowRoom).
// GOMEMLIMIT takes precedence.
func MemoryLimit(stages ...*config.Config) int64 {
	limit := int64(memoryBase) + int64(len(stages)-1)*memoryPerStage
	for _, cfg := range stages {
		windows := int64(cfg.Streams.Partitions) * int64(cfg.Window.Bytes)
		limit += windows + windows/16 + laneMemory(cfg) + int64(cfg.Pool.Size)*memoryPerCall
	}
	return limit
}

// laneMemory returns the memory of the batch lanes of all partitions: for each, a batch
// that gathers, one that is uploaded, and the places of the rows.
func laneMemory(cfg *config.Config) int64 {
	if !cfg.LaneOn() {
		return 0
	}
	batches, places := 2*int64(cfg.Lane.Bytes), int64(cfg.LaneRows())*memoryPerParked
	return int64(cfg.Streams.Partitions) * (batches + places)
}

// LimitEmbedded calls limit with the memory that a process with an embedded server needs,
// at once and whenever that has changed by more than a sixteenth, until ctx ends. The
// settings do not give that number: a full window takes as much as its rows do, and the
// server keeps blocks that it has just stored.
func (v *view) LimitEmbedded(ctx context.Context, limit func(bytes int64)) {
	ticker := time.NewTicker(embeddedLook)
	defer ticker.Stop()
	for last := int64(0); ; {
		window := int64(0)
		for _, c := range v.consumers {
			st := c.Status()
			window += st.BufferedBytes + int64(st.Window)*memoryPerRow
		}
		if next := embeddedLimit(window, v.Cfg.Pool.Size, heapLive()); next < last-last/16 ||
			next > last+last/16 {
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

// embeddedLimit returns the limit for a window of so many bytes, which the server has a
// second time. For example, a window of 32 MiB and 100 calls in flight are planned with
// 158 + 2 × 20 + 4.5 = 202.5 MiB.
//
// Where more is live than that leaves room for, the limit is half above the live size.
// That happens with results of 20 KiB: the server then stores tens of MiB a second. A
// limit equal to the live size would have the collector run without a pause: forty times
// a second, for half of the CPU of a row.
func embeddedLimit(window int64, calls int, live int64) int64 {
	planned := EmbeddedMemory + 2*max(0, window-embeddedWindow) + max(0,
		int64(calls)-embeddedCalls)*memoryPerCall
	return max(planned, live+live/2)
}

// heapLive returns the bytes that the last garbage collection has left in the heap.
func heapLive() int64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return int64(live[0].Value.Uint64()) //nolint:gosec // no heap is larger
}
