// Package tracing makes OpenTelemetry spans of rows and their calls.
package tracing

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
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
	// flushTimeout bounds how long the end of a process waits for its last spans,
	// hardFlushTimeout after a hard stop.
	flushTimeout     = 5 * time.Second
	hardFlushTimeout = 500 * time.Millisecond
)

// Tracing makes the spans of a stage. Nil is off: then there is no SDK, no exporter and
// no span. Safe for concurrent use once it is started.
//
// It never delays the stage. Spans wait for their exporter in a bounded queue, and are
// dropped if it is full; errors of an exporter are logged; and the end of the process
// waits for the last spans a bounded time.
type Tracing struct {
	cfg     config.TracingConfig
	log     *slog.Logger
	runID   string
	console io.Writer             // where the console exporter prints
	own     sdktrace.SpanExporter // replaces the exporter of cfg, or nil

	// Set by Start.
	provider  *sdktrace.TracerProvider
	tracer    trace.Tracer
	exporters []*exporter
}

// New returns the tracing that the configuration selects, or nil if it is off. It starts
// nothing. If own is not nil, it gets the spans regardless of the configuration. console
// is where the console exporter prints; nil means standard error. runID names the process
// in all spans.
func New(cfg *config.Config, own sdktrace.SpanExporter, console io.Writer, runID string, log *slog.Logger) *Tracing {
	if !cfg.Tracing().On() && own == nil {
		return nil
	}
	if console == nil {
		console = os.Stderr
	}
	return &Tracing{cfg: cfg.Tracing(), log: log, runID: runID, console: console, own: own}
}

// Start starts the exporters, unless t is nil. The caller must close t, also after an
// error.
func (t *Tracing) Start(ctx context.Context) error {
	if t == nil {
		return nil
	}
	LogOpenTelemetry(t.log)
	exporters, err := t.open(ctx)
	if err != nil {
		return err
	}
	queue := t.cfg.QueueSize
	if queue == 0 {
		queue = sdktrace.DefaultMaxQueueSize
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(Resource(ctx, t.runID, t.log))}
	for name, e := range exporters {
		x := newExporter(ctx, e, name, queue, t.log)
		t.exporters = append(t.exporters, x)
		options = append(options, sdktrace.WithSpanProcessor(spanQueue{sdktrace.NewBatchSpanProcessor(x, sdktrace.WithMaxQueueSize(queue)), x}))
	}
	t.provider = sdktrace.NewTracerProvider(options...)
	t.tracer = t.provider.Tracer(ScopeName, trace.WithInstrumentationVersion(version.Current().Version))
	t.log.Info("tracing is on", slog.Bool("otlp", t.cfg.OTLP), slog.String("protocol", t.cfg.Protocol), slog.Bool("console", t.cfg.Console))
	return nil
}

// LogOpenTelemetry sends the messages of OpenTelemetry's packages outside an export to the
// log. By default they are printed past it, headers with their tokens too.
func LogOpenTelemetry(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("OpenTelemetry", slog.Any("error", err)) }))
	otel.SetLogger(logr.FromSlogHandler(otelHandler{log.Handler()}))
}

// Resource describes this process in all spans and metrics.
func Resource(ctx context.Context, runID string, log *slog.Logger) *resource.Resource {
	r, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attrServiceName.String(defaultServiceName), attrServiceVersion.String(version.Current().Version),
			attrServiceInstanceID.String(runID)),
		resource.WithFromEnv(), // last, so that it takes precedence
	)
	if err != nil {
		log.Warn("the resource attributes for OpenTelemetry are incomplete", slog.Any("error", err))
	}
	return r
}

// open makes the exporters, by name. None of them connects before it has spans to send.
func (t *Tracing) open(ctx context.Context) (map[string]sdktrace.SpanExporter, error) {
	if t.own != nil {
		return map[string]sdktrace.SpanExporter{"own": t.own}, nil
	}
	exporters := make(map[string]sdktrace.SpanExporter)
	var otlpErr, consoleErr error
	switch {
	case t.cfg.OTLP && t.cfg.Protocol == config.ProtocolGRPC:
		exporters["otlp"], otlpErr = otlptracegrpc.New(ctx)
	case t.cfg.OTLP:
		exporters["otlp"], otlpErr = otlptracehttp.New(ctx)
	}
	if t.cfg.Console {
		exporters["console"], consoleErr = stdouttrace.New(stdouttrace.WithWriter(t.console))
	}
	return exporters, errors.Join(otlpErr, consoleErr)
}

// Close sends the last spans and stops the exporters, within five seconds, or half a
// second once hard has ended. All spans must have ended.
func (t *Tracing) Close(hard context.Context) {
	if t == nil || t.provider == nil {
		return
	}
	deadline, cancel := stopping.Within(hard, flushTimeout, hardFlushTimeout)
	defer cancel()
	defer context.AfterFunc(deadline, func() {
		for _, x := range t.exporters {
			x.cut()
		}
	})()
	if err := t.provider.Shutdown(context.WithoutCancel(hard)); err != nil { // returns soon after the cut at the latest
		t.log.Warn("tracing did not stop cleanly", slog.Any("error", err))
	}
	for _, x := range t.exporters {
		x.report()
	}
}
