//go:build long

package stage_test

import (
	"context"
	"maps"
	"net"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// grpcReceiver is a receiver that speaks gRPC.
type grpcReceiver struct {
	collector.UnimplementedTraceServiceServer
	*receiver
}

func (r grpcReceiver) Export(_ context.Context, export *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, decodeSpans(export)...)
	return &collector.ExportTraceServiceResponse{}, nil
}

// serveGRPC serves the receiver and returns its address.
func (r *receiver) serveGRPC(t *testing.T) string {
	t.Helper()
	listener := stagetest.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	srv := grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, grpcReceiver{receiver: r})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(listener)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	return "http://" + listener.Addr().String()
}

func TestTheVariablesOfOpenTelemetrySwitchTheProgramsTracing(t *testing.T) {
	const rows = 3
	for _, tt := range []struct {
		name    string
		environ func(t *testing.T, r *receiver) vars
		spans   int
		console bool
		code    int
		says    string
	}{
		{"an endpoint", func(t *testing.T, r *receiver) vars {
			t.Helper()
			return vars{"OTEL_EXPORTER_OTLP_ENDPOINT": r.serveHTTP(t), "OTEL_SERVICE_NAME": "reviews", "OTEL_RESOURCE_ATTRIBUTES": "team=a,service.name=other"}
		}, 2 * rows, false, 0, ""},
		{"gRPC", func(t *testing.T, r *receiver) vars {
			t.Helper()
			return vars{
				"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": r.serveGRPC(t),
				"OTEL_SERVICE_NAME": "reviews", "OTEL_RESOURCE_ATTRIBUTES": "team=a",
			}
		}, 2 * rows, false, 0, ""},
		{"the console", func(*testing.T, *receiver) vars { return vars{"OTEL_TRACES_EXPORTER": "console"} }, 0, true, 0, "tracing is on"},
		{"a sampler that keeps nothing", func(t *testing.T, r *receiver) vars {
			t.Helper()
			return vars{"OTEL_EXPORTER_OTLP_ENDPOINT": r.serveHTTP(t), "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
		}, 0, false, 0, "tracing is on"},
		{"disabled", func(t *testing.T, r *receiver) vars {
			t.Helper()
			return vars{"OTEL_EXPORTER_OTLP_ENDPOINT": r.serveHTTP(t), "OTEL_SDK_DISABLED": "true"}
		}, 0, false, 0, ""},
		{"nobody there", func(*testing.T, *receiver) vars {
			return vars{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "500"}
		}, 0, false, 0, "not all spans were exported"},
		{"unknown", func(*testing.T, *receiver) vars { return vars{"OTEL_TRACES_EXPORTER": "zipkin"} }, 0, false, 2, "OTEL_TRACES_EXPORTER"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, environ := realLLM(t, llmtest.Config{})
			rec, dir := &receiver{}, t.TempDir()
			maps.Copy(environ, vars{"STAGE_LLM_API_KEY": apiKey, "STAGE_LOG_LEVEL": "info"})
			maps.Copy(environ, tt.environ(t, rec))
			p := runStage(t, dir, environ, "process", writeRows(t, rows), "-o", filepath.Join(dir, "out.jsonl"))
			p.ends(tt.code)
			if log := p.stderr.String(); !strings.Contains(log, tt.says) || strings.Contains(log, `"SpanContext"`) != tt.console {
				t.Errorf("want %q and spans printed: %v, got\n%s", tt.says, tt.console, log)
			}
			spans := rec.received(t)
			if len(spans) != tt.spans {
				t.Fatalf("%d spans, want %d", len(spans), tt.spans)
			}
			for _, s := range spans {
				if s.Resource["service.name"] != "reviews" || s.Resource["team"] != "a" || s.Resource["telemetry.sdk.language"] != "go" {
					t.Errorf("resource %v", s.Resource)
				}
			}
			parents := slices.DeleteFunc(slices.Clone(spans), func(s *span) bool { return s.Parent == "" })
			if len(parents) != tt.spans/2 {
				t.Errorf("%d spans have a parent, want half of %d", len(parents), tt.spans)
			}
		})
	}
}

func (r *receiver) serveHTTP(t *testing.T) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(r)
	srv.Config.ReadHeaderTimeout = time.Minute
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}
