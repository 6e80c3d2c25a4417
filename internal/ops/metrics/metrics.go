// Package metrics has the metrics of the process, for Prometheus and for OpenTelemetry.
//
// What happens is counted when it happens: a call, a result, an event, the end of a term
// (metrics.go). What holds at the moment is read at each scrape from one [status.Snapshot]
// (gauges.go, lane.go). series.go makes counting cheap, and label.go bounds the number of
// series. operation.go has the metric that OpenTelemetry's conventions name, and
// exporter.go sends all metrics to a collector.
package metrics

import (
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/llm"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Buckets of the histograms, in seconds. A call takes from about 50 ms (a small local
// model) to two minutes, the default time-out of an attempt. A row also waits for
// capacity and for the rows before it, so it takes from 50 ms to hours. The lag from
// finished to emitted is a few milliseconds while the head of the line moves. Otherwise it
// is as long as the slowest row takes.
var (
	callBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120}
	rowBuckets  = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200}
	lagBuckets  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 10, 30, 60, 120, 300, 600}
)

// operationBuckets are the buckets that OpenTelemetry's conventions ask for.
var operationBuckets = []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}

// modelsMax bounds the values of the label model: a row may name its own model, and each
// name adds about seventy series.
const modelsMax = 32

// Metrics has every metric of the process, in its own registry. It is created by [New], and
// safe for concurrent use. Its methods do not block and take well under a microsecond.
type Metrics struct {
	registry *prometheus.Registry

	rows            *prometheus.CounterVec
	calls           *prometheus.CounterVec
	capacityRetries *prometheus.CounterVec
	tokens          *prometheus.CounterVec
	cost            *prometheus.CounterVec
	auditEvents     *prometheus.CounterVec
	terms           *prometheus.CounterVec
	callDuration    *prometheus.HistogramVec
	rowDuration     prometheus.Histogram
	emitLag         prometheus.Histogram
	operations      *prometheus.HistogramVec

	providers boundedLabel
	models    boundedLabel

	callSeries   seriesCache[callKey, *callSeries]
	resultSeries seriesCache[resultKey, prometheus.Counter]
	eventSeries  seriesCache[auditlog.Kind, prometheus.Counter]
}

var _ consumer.Observer = (*Metrics)(nil)

// New returns the metrics of a process. Each scrape calls snapshot, which must not block.
func New(build version.Build, snapshot func() status.Snapshot) *Metrics {
	m := newMetrics(build, "", snapshot)
	registerProcess(m.registry)
	return m
}

// NewOfSeveral returns the metrics of one stage of several in a process: those of [New]
// with the label stage, and without those of the process as a whole, which
// [HandlerOfSeveral] adds.
func NewOfSeveral(build version.Build, stage string, snapshot func() status.Snapshot) *Metrics {
	return newMetrics(build, stage, snapshot)
}

// registerProcess adds what the runtime and the system know of the process.
func registerProcess(registry *prometheus.Registry) {
	registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
}

// newMetrics makes the metrics of a stage. Without a name they have no label for it.
func newMetrics(build version.Build, stage string, snapshot func() status.Snapshot) *Metrics {
	registry := prometheus.NewRegistry()
	registerer := prometheus.Registerer(registry)
	if stage != "" {
		registerer = prometheus.WrapRegistererWith(prometheus.Labels{"stage": stage}, registry)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: registry,

		rows:            counter("llm_stage_rows_total", "Results stored, by status: success or error.", "partition", "status"),
		calls:           counter("llm_stage_calls_total", "HTTP attempts, by status: success, failure, capacity_retry or unknown.", "provider", "model", "status"),
		capacityRetries: counter("llm_stage_capacity_retries_total", "Attempts that met a capacity error and are retried.", "provider"),
		tokens:          counter("llm_stage_tokens_total", "Tokens reported by the provider, by type: prompt (cached and cache_write included), completion (reasoning included), cached, cache_write (cache_write_1h included), cache_write_1h, reasoning.", "provider", "model", "type"),
		cost:            counter("llm_stage_cost_usd_total", "Known cost of calls, in US dollars.", "provider", "model"),
		auditEvents:     counter("llm_stage_audit_events_total", "Audit events stored, by kind: call, row, run or batch.", "kind"),
		terms:           counter("llm_stage_terms_total", "Terms of ownership that ended, by end: stopped, fenced or error.", "partition", "end"),
		callDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "llm_stage_call_duration_seconds", Help: "Duration of HTTP attempts, from sending to the end of the reply.", Buckets: callBuckets,
		}, []string{"provider", "model", "status"}),
		rowDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "llm_stage_row_duration_seconds", Help: "Time of a row in the stage, from taken to emitted.", Buckets: rowBuckets,
		}),
		emitLag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "llm_stage_emit_lag_seconds", Help: "Time from finished to emitted: the wait for earlier rows and for the store.", Buckets: lagBuckets,
		}),
	}
	m.operations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: operationName, Help: "GenAI operation duration.", Buckets: operationBuckets,
	}, operationLabels())
	m.providers.max = len(llm.Providers())
	m.models.max = modelsMax
	registerer.MustRegister(
		m.rows, m.calls, m.capacityRetries, m.tokens, m.cost, m.auditEvents, m.terms, m.callDuration, m.rowDuration, m.emitLag, m.operations,
		newGauges(build, snapshot),
	)
	return m
}

// liveHeap adds the heap in use, which the collector's default metrics lack: they include
// what GOGC allows on top.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)}

// Handler serves the metrics in the text formats of Prometheus and OpenMetrics.
func (m *Metrics) Handler() http.Handler { return handler(m.registry) }

// HandlerOfSeveral serves the metrics of all stages of a process, made by [NewOfSeveral],
// and the metrics of the process.
func HandlerOfSeveral(stages []*Metrics) http.Handler {
	process := prometheus.NewRegistry()
	registerProcess(process)
	all := prometheus.Gatherers{process}
	for _, m := range stages {
		all = append(all, m.registry)
	}
	return handler(all)
}

func handler(from prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(from, promhttp.HandlerOpts{MaxRequestsInFlight: 4, EnableOpenMetrics: true})
}

// CallDone counts one HTTP attempt, with its tokens and cost. target is the host, port and
// path that it was sent to. failure is the kind of its failure as [tracing.ErrorType] has
// it, and empty where it succeeded.
func (m *Metrics) CallDone(c *auditlog.Call, target, failure string) {
	series := m.series(c, target, failure)
	series.calls.Inc()
	series.duration.Observe(c.Latency.Seconds())
	if c.Lane == "" { // nobody waited for the answer of a batch
		series.operation().Observe(c.Latency.Seconds())
	}
	if c.Status == auditlog.CallCapacityRetry {
		m.capacityRetries.WithLabelValues(m.providers.value(c.Provider)).Inc()
	}
	u := c.Usage
	if u == nil {
		return
	}
	for i, n := range [len(tokenTypes)]*int64{
		&u.PromptTokens, &u.CompletionTokens, u.CachedTokens, u.CacheWriteTokens, u.CacheWrite1hTokens, u.ReasoningTokens,
	} {
		if n != nil && *n > 0 {
			series.tokens[i]().Add(float64(*n))
		}
	}
	if u.CostUSD != nil && *u.CostUSD > 0 {
		series.cost().Add(*u.CostUSD)
	}
}

// AuditEvent counts one stored audit event.
func (m *Metrics) AuditEvent(kind auditlog.Kind) {
	m.eventSeries.get(kind, func() (prometheus.Counter, bool) {
		return m.auditEvents.WithLabelValues(string(kind)), true
	}).Inc()
}

// RowEmitted counts one stored result. It implements [consumer.Observer].
func (m *Metrics) RowEmitted(partition int, failed bool, sinceTaken, sinceFinished time.Duration) {
	m.resultSeries.get(resultKey{partition, failed}, func() (prometheus.Counter, bool) {
		status := "success"
		if failed {
			status = "error"
		}
		return m.rows.WithLabelValues(strconv.Itoa(partition), status), true
	}).Inc()
	m.rowDuration.Observe(sinceTaken.Seconds())
	m.emitLag.Observe(sinceFinished.Seconds())
}

// TermEnded counts one term of ownership. It implements [consumer.Observer].
func (m *Metrics) TermEnded(partition int, how string) {
	m.terms.WithLabelValues(strconv.Itoa(partition), how).Inc()
}
