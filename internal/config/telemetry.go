package config

import (
	"cmp"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// TracingConfig has the OTEL_* variables that the stage itself reads for spans.
// OpenTelemetry's own packages read the others (endpoint, headers, TLS, compression,
// timeouts, sampler, limits) from the environment of the process. The stage only checks
// these, since the packages fall back to a default without a word where a value is wrong.
// The zero value is off.
type TracingConfig struct {
	OTLP      bool   // spans go to a receiver, by Protocol
	Protocol  string // grpc, http/protobuf or http/json, or "" without OTLP
	Console   bool   // spans are printed on standard error
	QueueSize int    // most spans that wait for an exporter, or 0 for the SDK's default
}

// telemetry has the OTEL_* variables. It is zero unless the command needs calls: the others
// record nothing, so a wrong OTEL_* must not stop them.
type telemetry struct {
	tracing TracingConfig
	metrics MetricsConfig
}

// Tracing returns the OTEL_* settings of spans.
func (c *Config) Tracing() TracingConfig { return c.telemetry.tracing }

// MetricsConfig has the OTEL_* variables of the export of metrics. The zero value is off.
// Prometheus can scrape the metrics in any case.
type MetricsConfig struct {
	// OTLP sends the metrics to a receiver, by Protocol.
	OTLP bool
	// Protocol is grpc or http/protobuf, and empty without OTLP.
	Protocol string
}

// MetricsExport returns the OTEL_* settings of metrics.
func (c *Config) MetricsExport() MetricsConfig { return c.telemetry.metrics }

// On reports whether there are spans to record.
func (t TracingConfig) On() bool { return t.OTLP || t.Console }

// ProtocolGRPC is the protocol of OTLP over gRPC; any other is over HTTP.
const ProtocolGRPC = "grpc"

const (
	protocolProtobuf = "http/protobuf"
	protocolJSON     = "http/json"
)

// otelVariables reads the OTEL_* variables and collects their problems.
type otelVariables struct {
	environ map[string]string
	found   *problems
}

// loadTelemetry reads the OTEL_* variables. While they switch on neither tracing nor the
// export of metrics, they are not checked: they may be meant for other programs.
func loadTelemetry(environ map[string]string, found *problems) (all telemetry) {
	v := otelVariables{environ, found}
	if strings.EqualFold(v.get("OTEL_SDK_DISABLED"), "true") {
		return all
	}
	t, m := &all.tracing, &all.metrics
	if t.choose(v); t.On() {
		t.load(v)
	}
	if m.choose(v); m.OTLP {
		m.load(v)
	}
	if t.OTLP || m.OTLP {
		v.checkReceiver("")
	}
	return all
}

// get returns the value of a variable without the space around it, as the SDK reads it.
func (v otelVariables) get(name string) string { return strings.TrimSpace(v.environ[name]) }

// exporters calls use with each exporter of a list, except none. use reports whether the
// stage has that exporter. choices names the exporters that it has, for the problem.
func (v otelVariables) exporters(variable, choices string, use func(exporter string) bool) {
	list := splitList(v.get(variable))
	for _, exporter := range list {
		switch {
		case exporter == "none" && len(list) > 1:
			v.found.add(variable, "%q: none cannot be combined with others", v.get(variable))
		case exporter != "none" && !use(exporter):
			v.found.add(variable, "%q is not supported: choose %s", exporter, choices)
		}
	}
}

// protocol reads the protocol of OTLP for a signal, such as TRACES. The variable of the
// signal takes precedence over that for all signals.
func (v otelVariables) protocol(signal string, choices ...string) string {
	name := "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"
	if v.get(name) == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
	}
	protocol := cmp.Or(v.get(name), protocolProtobuf)
	if !slices.Contains(choices, protocol) {
		v.found.add(name, "%q is not supported for %s: choose %s", protocol,
			strings.ToLower(signal), orList(choices))
	}
	return protocol
}

// checkNumbers checks variables that are whole numbers.
func (v otelVariables) checkNumbers(names ...string) {
	for _, name := range names {
		if text := v.get(name); text != "" {
			if n, err := strconv.Atoi(text); err != nil || n <= 0 {
				v.found.add(name, "%q: give a whole number above 0", text)
			}
		}
	}
}

// checkReceiver checks the URL of the receiver of a signal, such as TRACES_, or of all
// signals, and the files that a connection to it needs.
func (v otelVariables) checkReceiver(signal string) {
	prefix := "OTEL_EXPORTER_OTLP_" + signal
	if text := v.get(prefix + "ENDPOINT"); text != "" {
		if u, err := url.Parse(text); err != nil || u.Host == "" ||
			u.Scheme != "http" && u.Scheme != "https" {
			v.found.add(prefix+"ENDPOINT", "%q: give a URL such as http://localhost:4318", text)
		}
	}
	for _, name := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if path := v.get(prefix + name); path != "" {
			if _, err := os.ReadFile(path); err != nil {
				v.found.add(prefix+name, "%v: give the path of a PEM file", plainPathError(err))
			}
		}
	}
	if c := v.get(prefix + "COMPRESSION"); c != "" && c != "gzip" && c != "none" {
		v.found.add(prefix+"COMPRESSION", "%q is not supported: choose gzip or none", c)
	}
	v.checkNumbers(prefix + "TIMEOUT")
}

// choose reads where spans go.
func (t *TracingConfig) choose(v otelVariables) {
	if v.get("OTEL_TRACES_EXPORTER") == "" {
		t.OTLP = v.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" ||
			v.get("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
		return
	}
	v.exporters("OTEL_TRACES_EXPORTER", "otlp, console or none", func(exporter string) bool {
		t.OTLP = t.OTLP || exporter == "otlp"
		t.Console = t.Console || exporter == "console"
		return exporter == "otlp" || exporter == "console"
	})
}

// load reads the settings of spans that the stage itself needs, and checks those that the
// SDK reads.
func (t *TracingConfig) load(v otelVariables) {
	if t.OTLP {
		t.Protocol = v.protocol("TRACES", protocolProtobuf, protocolJSON, ProtocolGRPC)
		v.checkReceiver("TRACES_")
	}
	v.checkSampler()
	if list := v.get("OTEL_PROPAGATORS"); list != "" &&
		!slices.Contains(splitList(list), "tracecontext") {
		v.found.add("OTEL_PROPAGATORS", "%q: only tracecontext is supported, "+
			"which continues the rows' traceparent; name it, or unset the variable", list)
	}
	v.checkNumbers("OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT", "OTEL_BSP_MAX_QUEUE_SIZE",
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
	t.QueueSize, _ = strconv.Atoi(v.get("OTEL_BSP_MAX_QUEUE_SIZE"))
}

// choose reads whether metrics are sent. OTEL_EXPORTER_OTLP_ENDPOINT, which is for all
// signals, switches on tracing but not metrics, since a receiver there may take spans
// alone.
func (m *MetricsConfig) choose(v otelVariables) {
	if v.get("OTEL_METRICS_EXPORTER") == "" {
		m.OTLP = v.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != ""
		return
	}
	v.exporters("OTEL_METRICS_EXPORTER", "otlp, prometheus or none", func(exporter string) bool {
		m.OTLP = m.OTLP || exporter == "otlp"
		return exporter == "otlp" || exporter == "prometheus" // /metrics is always served
	})
}

// load reads the settings of metrics that the stage itself needs, and refuses those that
// it does not have.
func (m *MetricsConfig) load(v otelVariables) {
	m.Protocol = v.protocol("METRICS", protocolProtobuf, ProtocolGRPC)
	v.checkReceiver("METRICS_")
	v.checkNumbers("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT")
	for name, only := range map[string]string{
		"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE":        "cumulative",
		"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
	} {
		if text := v.get(name); text != "" && !strings.EqualFold(text, only) {
			v.found.add(name, "%q is not supported: choose %s, or unset the variable", text, only)
		}
	}
}

// checkSampler checks the sampler and its argument. The SDK reads both, but at a mistake
// it falls back to its default, which samples everything.
func (v otelVariables) checkSampler() {
	samplers := []string{
		"always_on", "always_off", "traceidratio", "parentbased_always_on",
		"parentbased_always_off", "parentbased_traceidratio",
	}
	name := strings.ToLower(v.get("OTEL_TRACES_SAMPLER"))
	if name == "" {
		return
	}
	if !slices.Contains(samplers, name) {
		v.found.add("OTEL_TRACES_SAMPLER", "%q is not supported: choose %s", name, orList(samplers))
	}
	if arg := v.get("OTEL_TRACES_SAMPLER_ARG"); arg != "" &&
		strings.HasSuffix(name, "traceidratio") {
		if ratio, err := strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			v.found.add("OTEL_TRACES_SAMPLER_ARG",
				"%q: give the fraction of traces to keep, from 0 to 1", arg)
		}
	}
}

// splitList splits a comma-separated list.
func splitList(text string) (words []string) {
	for word := range strings.SplitSeq(text, ",") {
		words = append(words, strings.TrimSpace(word))
	}
	return words
}
