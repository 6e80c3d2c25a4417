// Package tracing makes OpenTelemetry spans of rows and their calls.
package tracing

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/version"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// traceFlushTimeout bounds how long the end of a process waits for its last spans, hardTraceFlushTimeout where it must end
	// at once.
	traceFlushTimeout     = 5 * time.Second
	hardTraceFlushTimeout = 500 * time.Millisecond
)

// Tracing makes the spans of a stage. Nil is off: then there is no SDK, no exporter and no span.
//
// Nothing of it holds the stage up. Spans wait for their exporter in a queue that is bounded, and are dropped where it
// is full; errors of an exporter go into the log; and the end of the process waits for the last ones a bounded time.
type Tracing struct {
	cfg   config.TracingConfig
	log   *slog.Logger
	runID string
	to    io.Writer             // where the console exporter prints
	own   sdktrace.SpanExporter // instead of those of cfg; nil: none

	provider  *sdktrace.TracerProvider // set by start, as the rest
	tracer    trace.Tracer
	exporters []*exporter
}

// New returns nil where tracing is off. It starts nothing.
func New(cfg *config.Config, own sdktrace.SpanExporter, to io.Writer, runID string, log *slog.Logger) *Tracing {
	if !cfg.Tracing().On() && own == nil {
		return nil
	}
	if to == nil {
		to = os.Stderr
	}
	return &Tracing{cfg: cfg.Tracing(), log: log, runID: runID, to: to, own: own}
}

// Start starts the exporters. The caller must close t, also after an error.
func (t *Tracing) Start(ctx context.Context) error {
	if t == nil {
		return nil
	}
	// What the packages have to say outside an export; the defaults print it past the log, headers with their tokens too.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.log.Warn("tracing", slog.Any("error", err)) }))
	otel.SetLogger(logr.FromSlogHandler(otelHandler{t.log.Handler()}))
	res, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attrServiceName.String(defaultServiceName), attrServiceVersion.String(version.Current().Version),
			attrServiceInstanceID.String(t.runID)),
		resource.WithFromEnv(), // last, so that it wins
	)
	if err != nil {
		t.log.Warn("what the spans say of this process is incomplete", slog.Any("error", err))
	}
	exporters, err := t.open(ctx)
	if err != nil {
		return err
	}
	queue := t.cfg.QueueSize
	if queue == 0 {
		queue = sdktrace.DefaultMaxQueueSize
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(res)}
	for name, e := range exporters {
		x := newExporter(ctx, e, name, queue, t.log)
		t.exporters = append(t.exporters, x)
		options = append(options, sdktrace.WithSpanProcessor(spanQueue{sdktrace.NewBatchSpanProcessor(x, sdktrace.WithMaxQueueSize(queue)), x}))
	}
	t.provider = sdktrace.NewTracerProvider(options...)
	t.tracer = t.provider.Tracer(tracerName, trace.WithInstrumentationVersion(version.Current().Version))
	t.log.Info("tracing is on", slog.Bool("otlp", t.cfg.Otlp), slog.String("protocol", t.cfg.Protocol), slog.Bool("console", t.cfg.Console))
	return nil
}

// open makes the exporters, by name. None of them connects before it has spans to send.
func (t *Tracing) open(ctx context.Context) (map[string]sdktrace.SpanExporter, error) {
	exporters := make(map[string]sdktrace.SpanExporter)
	if t.own != nil {
		exporters["own"] = t.own
		return exporters, nil
	}
	var faults []error
	add := func(name string, e sdktrace.SpanExporter, err error) {
		if err != nil {
			faults = append(faults, err)
			return
		}
		exporters[name] = e
	}
	if t.cfg.Otlp && t.cfg.Protocol == config.ProtocolGRPC {
		e, err := otlptracegrpc.New(ctx)
		add("otlp", e, err)
	} else if t.cfg.Otlp {
		e, err := otlptracehttp.New(ctx)
		add("otlp", e, err)
	}
	if t.cfg.Console {
		e, err := stdouttrace.New(stdouttrace.WithWriter(t.to))
		add("console", e, err)
	}
	return exporters, errors.Join(faults...)
}

// Close sends the last spans, within a bounded time that is short once hard ends. All spans must have ended.
func (t *Tracing) Close(hard context.Context) {
	if t == nil || t.provider == nil {
		return
	}
	patience, cancel := stopping.Within(hard, traceFlushTimeout, hardTraceFlushTimeout)
	defer cancel()
	defer context.AfterFunc(patience, func() {
		for _, x := range t.exporters {
			x.cut()
		}
	})()
	if err := t.provider.Shutdown(context.WithoutCancel(hard)); err != nil { // returns soon after the cut at the latest
		t.log.Warn("tracing did not end well", slog.Any("error", err))
	}
	for _, x := range t.exporters {
		x.report()
	}
}

// spanQueue is the queue before an exporter.
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

// exporter is one exporter of OpenTelemetry. It counts what is lost of the spans, which the SDK does not tell.
type exporter struct {
	to    sdktrace.SpanExporter
	name  string
	queue int64
	log   *slog.Logger
	ended atomic.Int64       // spans to be exported
	taken atomic.Int64       // of them, out of the queue or known to be dropped
	sent  atomic.Int64       // of them, exported
	cut   context.CancelFunc // ends the export under way, and all later ones
	onCut func(func()) (undo func() bool)
}

func newExporter(ctx context.Context, to sdktrace.SpanExporter, name string, queue int, log *slog.Logger) *exporter {
	ctx, cut := context.WithCancel(context.WithoutCancel(ctx))
	x := &exporter{to: to, name: name, queue: int64(queue), log: log, cut: cut}
	x.onCut = func(f func()) func() bool { return context.AfterFunc(ctx, f) }
	return x
}

// ExportSpans sends spans. An error ends in the log: the spans are lost, and the stage goes on.
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

// noteDrops logs how many spans were dropped since the last batch: of those that ended and were not taken, the queue
// holds no more than its size.
func (x *exporter) noteDrops(batch int64) {
	waiting := x.ended.Load() - x.taken.Add(batch)
	if dropped := waiting - x.queue - batch; dropped > 0 { // a batch may gather beside the queue
		x.taken.Add(dropped)
		x.log.Warn("spans were dropped: the exporter is too slow, see OTEL_BSP_MAX_QUEUE_SIZE and OTEL_TRACES_SAMPLER",
			slog.String("exporter", x.name), slog.Int64("spans", dropped))
	}
}

// report says at the end how many spans were lost.
func (x *exporter) report() {
	x.cut()
	if ended, sent := x.ended.Load(), x.sent.Load(); sent < ended {
		x.log.Warn("not all spans were exported", slog.String("exporter", x.name), slog.Int64("lost", ended-sent), slog.Int64("exported", sent))
	}
}
