package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// spanQueue is the queue in front of an exporter. It counts the spans that come in.
type spanQueue struct {
	sdktrace.SpanProcessor
	to *exporter
}

// OnEnd queues a span, or drops it where the queue is full. It never blocks.
func (q spanQueue) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		q.to.ended.Add(1)
	}
	q.SpanProcessor.OnEnd(s)
}

// exporter wraps one exporter of OpenTelemetry. It counts the spans that are lost, which
// the SDK does not report.
type exporter struct {
	to    sdktrace.SpanExporter
	name  string
	queue int64 // size of the queue in front of it
	log   *slog.Logger

	// sent <= taken. ended is at most taken + queue + one batch: with a queue of 2048 and
	// batches of 512, more than 2560 spans beyond taken mean that some were dropped.
	ended atomic.Int64 // spans that should be exported
	taken atomic.Int64 // the part of ended that is out of the queue or known to be dropped
	sent  atomic.Int64 // the part of taken that is exported

	cut   context.CancelFunc // ends the export in progress, and all later ones
	onCut func(func()) (undo func() bool)
}

// newExporter wraps an exporter. ctx ends nothing: the last spans are sent after it has
// ended.
func newExporter(ctx context.Context, to sdktrace.SpanExporter, name string, queue int, log *slog.Logger) *exporter {
	ctx, cut := context.WithCancel(context.WithoutCancel(ctx))
	x := &exporter{to: to, name: name, queue: int64(queue), log: log, cut: cut}
	x.onCut = func(f func()) func() bool { return context.AfterFunc(ctx, f) }
	return x
}

// ExportSpans sends spans. An error is logged: the spans are lost, and the stage continues.
func (x *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	x.noteDrops(int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer x.onCut(cancel)()
	if err := x.to.ExportSpans(ctx, spans); err != nil {
		x.log.Warn("spans were not exported", slog.String("exporter", x.name), slog.Int("spans", len(spans)), slog.Any("error", err))
		return nil
	}
	x.sent.Add(int64(len(spans)))
	return nil
}

// Shutdown closes the exporter.
func (x *exporter) Shutdown(ctx context.Context) error { return x.to.Shutdown(ctx) }

// noteDrops logs how many spans were dropped since the last batch: of those that ended
// and were not taken, the queue can't hold more than its size.
func (x *exporter) noteDrops(batch int64) {
	waiting := x.ended.Load() - x.taken.Add(batch)
	if dropped := waiting - x.queue - batch; dropped > 0 { // the processor may hold a batch in addition to the queue
		x.taken.Add(dropped)
		x.log.Warn("spans were dropped: the exporter is too slow, see OTEL_BSP_MAX_QUEUE_SIZE and OTEL_TRACES_SAMPLER",
			slog.String("exporter", x.name), slog.Int64("spans", dropped))
	}
}

// report logs at the end how many spans were lost, if any.
func (x *exporter) report() {
	x.cut()
	if ended, sent := x.ended.Load(), x.sent.Load(); sent < ended {
		x.log.Warn("not all spans were exported", slog.String("exporter", x.name), slog.Int64("lost", ended-sent), slog.Int64("exported", sent))
	}
}
