package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/tracing"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

const (
	// flushTimeout bounds how long the end of a process waits until its last values are
	// sent, hardFlushTimeout after a hard stop.
	flushTimeout     = 5 * time.Second
	hardFlushTimeout = 500 * time.Millisecond

	// complainEvery is how often exports that fail one after the other are logged.
	complainEvery = 10 * time.Minute
)

// Exporter sends the metrics of a stage to an OpenTelemetry collector, at the interval of
// OTEL_METRIC_EXPORT_INTERVAL and once more at the end. It is created by [NewExporter]. A
// nil Exporter sends nothing.
//
// It never delays the stage. An export that fails is logged and its values are lost; the
// values are cumulative, so the next export that succeeds has them again.
type Exporter struct {
	cfg     config.MetricsConfig
	metrics *Metrics
	runID   string
	log     *slog.Logger

	// These are set by Start.
	provider *sdkmetric.MeterProvider
	out      *reporting
}

// NewExporter returns the exporter that the configuration selects, or nil if it is off. It
// starts nothing. runID names the process.
func NewExporter(cfg config.MetricsConfig, m *Metrics, runID string, log *slog.Logger) *Exporter {
	if !cfg.OTLP {
		return nil
	}
	return &Exporter{cfg: cfg, metrics: m, runID: runID, log: log}
}

// Start starts the exports, unless x is nil. The caller must close x, also after an error.
func (x *Exporter) Start(ctx context.Context) error {
	if x == nil {
		return nil
	}
	tracing.LogOpenTelemetry(x.log)
	var to sdkmetric.Exporter
	var err error
	if x.cfg.Protocol == config.ProtocolGRPC {
		to, err = otlpmetricgrpc.New(ctx)
	} else {
		to, err = otlpmetrichttp.New(ctx)
	}
	if err != nil {
		return err
	}
	x.start(ctx, to)
	x.log.Info("metrics are exported", slog.String("protocol", x.cfg.Protocol))
	return nil
}

// start starts the exports to an exporter of OpenTelemetry's.
func (x *Exporter) start(ctx context.Context, to sdkmetric.Exporter) {
	values := conventional{bridge.NewMetricProducer(bridge.WithGatherer(x.metrics.registry))}
	x.out = &reporting{Exporter: to, log: x.log}
	x.provider = sdkmetric.NewMeterProvider(sdkmetric.WithResource(tracing.Resource(ctx, x.runID, x.log)),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(x.out, sdkmetric.WithProducer(values))))
}

// Close sends the last values and stops the exports, within five seconds, or half a second
// once hard has ended.
func (x *Exporter) Close(hard context.Context) {
	if x == nil || x.provider == nil {
		return
	}
	deadline, cancel := stopping.Within(hard, flushTimeout, hardFlushTimeout)
	defer cancel()
	if err := x.provider.Shutdown(deadline); err != nil {
		x.log.Warn("the export of metrics did not stop cleanly", slog.Any("error", err))
	}
	x.out.end()
}

// reporting logs the failures of an exporter, which OpenTelemetry would report each time.
// It logs at most one failure in ten minutes, and when they are over.
type reporting struct {
	sdkmetric.Exporter
	log *slog.Logger

	mu     sync.Mutex
	failed int       // exports in a row
	said   bool      // one of these failures was logged
	logged time.Time // when a failure was logged last
}

// Export sends values. It returns no error.
func (r *reporting) Export(ctx context.Context, values *metricdata.ResourceMetrics) error {
	err := r.Exporter.Export(ctx, values)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if r.said {
			r.log.Info("metrics are exported again", slog.Int("failed_exports", r.failed))
		}
		r.failed, r.said = 0, false
		return nil
	}
	r.failed++
	if r.logged.IsZero() || time.Since(r.logged) >= complainEvery {
		r.said, r.logged = true, time.Now()
		r.log.Warn("metrics were not exported", slog.Int("failed_exports", r.failed), slog.Any("error", err))
	}
	return nil
}

// end logs whether the last values were lost.
func (r *reporting) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed > 0 {
		r.log.Warn("the last metrics were not exported", slog.Int("failed_exports", r.failed))
	}
}
