package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// metricsCollector is an OpenTelemetry collector. It writes the metrics and resources that it
// gets into a file, one a line.
type metricsCollector struct {
	collector.UnimplementedMetricsServiceServer
	path string
	mu   sync.Mutex
}

// Export implements the collector over gRPC.
func (c *metricsCollector) Export(_ context.Context, export *collector.ExportMetricsServiceRequest) (*collector.ExportMetricsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	for _, resource := range export.GetResourceMetrics() {
		for _, scope := range resource.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				_, _ = fmt.Fprintln(f, m)
			}
		}
		_, _ = fmt.Fprintln(f, resource.GetResource())
	}
	return &collector.ExportMetricsServiceResponse{}, f.Close()
}

// ServeHTTP is the collector over HTTP.
func (c *metricsCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var export collector.ExportMetricsServiceRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err == nil {
		_, err = c.Export(r.Context(), &export)
	}
	if err != nil || r.URL.Path != "/v1/metrics" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
	}
}

// scriptCollector serves an OpenTelemetry collector until the end of the script. It puts its
// URL into a variable, and what it gets into a file:
//
//	collector OTEL_EXPORTER_OTLP_ENDPOINT metrics.txt [grpc]
func scriptCollector(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: collector VARIABLE file [grpc]")
	}
	c := &metricsCollector{path: ts.MkAbs(args[1])}
	if len(args) == 2 {
		server := httptest.NewServer(c)
		ts.Defer(server.Close)
		ts.Setenv(args[0], server.URL)
		return
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	ts.Check(err)
	server := grpc.NewServer()
	collector.RegisterMetricsServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	ts.Defer(server.Stop)
	ts.Setenv(args[0], "http://"+listener.Addr().String())
}
