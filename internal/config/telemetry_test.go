package config

import (
	"maps"
	"strings"
	"testing"
)

func TestTheOTELVariablesSwitchTracingAndMetricsOn(t *testing.T) {
	const local = "http://localhost:4318"
	for _, tt := range []struct {
		name    string
		vars    map[string]string
		want    TracingConfig
		metrics MetricsConfig
		problem string // in the error; empty: there is none
	}{
		{name: "nothing", vars: nil},
		{name: "an endpoint", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": local}, want: TracingConfig{OTLP: true, Protocol: protocolProtobuf}},
		{name: "an endpoint for traces", vars: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": local + "/v1/traces"}, want: TracingConfig{OTLP: true, Protocol: protocolProtobuf}},
		{name: "an exporter", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, want: TracingConfig{OTLP: true, Protocol: protocolProtobuf}},
		{name: "the console", vars: map[string]string{"OTEL_TRACES_EXPORTER": "console"}, want: TracingConfig{Console: true}},
		{name: "both", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp, console"}, want: TracingConfig{OTLP: true, Console: true, Protocol: protocolProtobuf}},
		{name: "no exporter", vars: map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": local}},
		{name: "disabled", vars: map[string]string{"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": local, "OTEL_TRACES_EXPORTER": "bad"}},
		{name: "not disabled", vars: map[string]string{"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, want: TracingConfig{OTLP: true, Protocol: protocolProtobuf}},
		{name: "a protocol", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, want: TracingConfig{OTLP: true, Protocol: ProtocolGRPC}},
		{
			name: "a protocol for traces", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
			want: TracingConfig{OTLP: true, Protocol: protocolJSON},
		},
		{name: "a queue", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_QUEUE_SIZE": "7"}, want: TracingConfig{OTLP: true, Protocol: protocolProtobuf, QueueSize: 7}},
		{name: "a sampler", vars: map[string]string{"OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, want: TracingConfig{Console: true}},
		{name: "problems while off are ignored", vars: map[string]string{"OTEL_TRACES_SAMPLER": "xray", "OTEL_PROPAGATORS": "b3", "OTEL_BSP_MAX_QUEUE_SIZE": "x"}},
		{name: "metrics", vars: map[string]string{"OTEL_METRICS_EXPORTER": "otlp"}, metrics: MetricsConfig{OTLP: true, Protocol: protocolProtobuf}},
		{name: "an endpoint for metrics", vars: map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": local + "/v1/metrics"}, metrics: MetricsConfig{OTLP: true, Protocol: protocolProtobuf}},
		{
			name: "a protocol for metrics", vars: map[string]string{
				"OTEL_METRICS_EXPORTER": "otlp,prometheus", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
				"OTEL_TRACES_EXPORTER": "otlp",
			},
			want: TracingConfig{OTLP: true, Protocol: protocolJSON}, metrics: MetricsConfig{OTLP: true, Protocol: ProtocolGRPC},
		},
		{name: "no metrics", vars: map[string]string{"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": local}},
		{name: "metrics for Prometheus alone", vars: map[string]string{"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_METRIC_EXPORT_INTERVAL": "1m"}},
		{name: "metrics are disabled", vars: map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_METRICS_EXPORTER": "otlp"}},

		{name: "unknown exporter of metrics", vars: map[string]string{"OTEL_METRICS_EXPORTER": "console"}, problem: `OTEL_METRICS_EXPORTER: "console" is not supported: choose otlp, prometheus or none`},
		{name: "metrics as JSON", vars: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, problem: `OTEL_EXPORTER_OTLP_PROTOCOL: "http/json" is not supported for metrics: choose http/protobuf or grpc`},
		{name: "an interval", vars: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "1m"}, problem: `OTEL_METRIC_EXPORT_INTERVAL: "1m": give a whole number above 0`},
		{name: "differences", vars: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}, problem: `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE: "delta" is not supported: choose cumulative`},
		{name: "unknown exporter", vars: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, problem: `OTEL_TRACES_EXPORTER: "zipkin" is not supported: choose otlp, console or none`},
		{name: "none and another", vars: map[string]string{"OTEL_TRACES_EXPORTER": "none,otlp"}, problem: "OTEL_TRACES_EXPORTER"},
		{name: "unknown protocol", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "thrift"}, problem: `OTEL_EXPORTER_OTLP_PROTOCOL: "thrift" is not supported for traces: choose http/protobuf`},
		{name: "endpoint without scheme", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, problem: "OTEL_EXPORTER_OTLP_ENDPOINT: \"localhost:4318\": give a URL"},
		{name: "unknown sampler", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "jaeger_remote"}, problem: "OTEL_TRACES_SAMPLER: \"jaeger_remote\" is not supported"},
		{name: "sampler's argument", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"}, problem: "OTEL_TRACES_SAMPLER_ARG: \"10%\""},
		{name: "propagators", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_PROPAGATORS": "b3,jaeger"}, problem: "OTEL_PROPAGATORS: \"b3,jaeger\": only tracecontext is supported"},
		{name: "a number", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_SCHEDULE_DELAY": "5s"}, problem: "OTEL_BSP_SCHEDULE_DELAY: \"5s\": give a whole number above 0"},
		{name: "a file", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such.pem"}, problem: "OTEL_EXPORTER_OTLP_CERTIFICATE: /no/such.pem"},
		{name: "compression", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, problem: "OTEL_EXPORTER_OTLP_COMPRESSION: \"zstd\" is not supported"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			environ := map[string]string{"STAGE_TEMPLATE": "x", "STAGE_LLM_PROVIDER": "mock"}
			maps.Copy(environ, tt.vars)
			cfg, err := Source{Environ: environ}.Load(t.Context(), NeedCalls)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("error %v, want one with %s", err, tt.problem)
				}
				if _, err := (Source{Environ: environ}).Load(t.Context(), NeedNothing); err != nil {
					t.Errorf("a command that makes no calls fails: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Tracing() != tt.want || cfg.MetricsExport() != tt.metrics {
				t.Errorf("got %+v and %+v, want %+v and %+v", cfg.Tracing(), cfg.MetricsExport(), tt.want, tt.metrics)
			}
		})
	}
}
