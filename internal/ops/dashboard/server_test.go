package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
)

// onLoopback is the check of a server on 127.0.0.1 without settings.
var onLoopback = hostCheck{loopback: true, names: config.HostNames{"localhost"}}

func testHandlers() Handlers {
	return Handlers{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "metrics") }), //nolint:errcheck // in memory
		Ready:   func() (bool, string) { return false, "paused: no credit" },
		Status:  func() any { return map[string]any{"rows": 3} },
		Whole:   func(context.Context) any { return map[string]any{"replicas": 2} },
		Events:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "events") }), //nolint:errcheck // in memory
	}
}

func TestPathsOfTheHTTPServer(t *testing.T) {
	handlers := testHandlers()
	ready := handlers
	ready.Ready = func() (bool, string) { return true, "" }
	broken := handlers
	broken.Status = func() any { return func() {} }
	for _, tt := range []struct {
		handlers          Handlers
		method, url, host string
		status            int
		body              string // part of it
	}{
		{handlers, "GET", "/metrics", "localhost:9464", 200, "metrics"},
		{handlers, "GET", "/healthz", "127.0.0.1:9464", 200, "ok\n"},
		{handlers, "HEAD", "/healthz", "127.0.0.1:9464", 200, ""},
		{handlers, "GET", "/readyz", "[::1]:9464", 503, "paused: no credit\n"},
		{ready, "GET", "/readyz", "localhost", 200, "ok\n"},
		{handlers, "GET", "/api/status", "localhost", 200, "{\"rows\":3}\n"},
		{handlers, "GET", "/api/stage", "localhost", 200, "{\"replicas\":2}\n"},
		{handlers, "GET", "/api/stage", "example.com", 421, ""},
		{broken, "GET", "/api/status", "localhost", 500, "unsupported type"},
		{handlers, "GET", "/", "localhost", 200, "<!DOCTYPE html>"},
		{handlers, "GET", "/nothing", "localhost", 404, ""},
		{handlers, "GET", "/api/nothing", "localhost", 404, ""},
		{handlers, "POST", "/api/status", "localhost", 404, ""},
		{handlers, "GET", "/api/events", "localhost", 200, "events"},
		{handlers, "GET", "/dashboard.js", "localhost", 200, "api/events"},
		{handlers, "GET", "/nothing/", "localhost", 404, ""},
		{handlers, "POST", "/", "localhost", 405, "pages are read"},
		{handlers, "POST", "/api/events", "localhost", 404, ""},
		{handlers, "GET", "/api/events", "evil.example", 421, "localhost only"},
		{handlers, "GET", "/api/status", "evil.example", 421, "localhost only"},
		{handlers, "GET", "/api/status", "192.0.2.1:9464", 421, "localhost only"},
		{handlers, "GET", "/metrics", "", 421, "localhost only"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), tt.method, tt.url, nil)
		r.Host = tt.host
		w := httptest.NewRecorder()
		guarded(tt.handlers, onLoopback).ServeHTTP(w, r)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
			t.Errorf("%s %s of %q: got %d %q, want %d with %q", tt.method, tt.url, tt.host, w.Code, w.Body, tt.status, tt.body)
		}
		if w.Code == http.StatusOK {
			for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options"} {
				if w.Header().Get(name) == "" {
					t.Errorf("%s %s: no header %s", tt.method, tt.url, name)
				}
			}
		}
	}
}

// Real sockets: one server, its address taken by a second.
func TestServerListensServesAndStops(t *testing.T) {
	listener := stagetest.Value(Listen(t.Context(), "127.0.0.1:0", false, "STAGE_HTTP_ADDR"))(t)
	taken := listener.Addr().String()
	if _, err := Listen(t.Context(), taken, false, "STAGE_HTTP_ADDR"); err == nil || !strings.Contains(err.Error(), "listen on "+taken) || !strings.Contains(err.Error(), "address already in use: free it, or set another STAGE_HTTP_ADDR") {
		t.Errorf("a taken port: got %v", err)
	}
	other, err := Listen(t.Context(), taken, true, "STAGE_HTTP_ADDR")
	if err != nil {
		t.Fatalf("any port: %v", err)
	}
	if host, _, err := net.SplitHostPort(other.Addr().String()); host != "127.0.0.1" || err != nil || other.Addr().String() == taken {
		t.Errorf("any port: got %s", other.Addr())
	}
	other.Close() //nolint:errcheck // no longer needed

	server := NewServer(listener, config.HTTPConfig{}, testHandlers(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, t.Context()) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL()+"api/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // read
	var status map[string]int
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil || status["rows"] != 3 {
		t.Errorf("got %v, %v", status, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: got %v, want nil at the end of ctx", err)
	}

	broken := stagetest.Value(Listen(t.Context(), "127.0.0.1:0", false, "STAGE_HTTP_ADDR"))(t)
	broken.Close() //nolint:errcheck // which is the point
	if err := NewServer(broken, config.HTTPConfig{}, testHandlers(), slog.New(slog.DiscardHandler)).Run(t.Context(), t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that fails: got %v", err)
	}
}

func TestURLNamesThisMachine(t *testing.T) {
	for addr, want := range map[string]string{"127.0.0.1:0": "http://127.0.0.1:", ":0": "http://127.0.0.1:"} {
		listener := stagetest.Value(Listen(t.Context(), addr, false, "STAGE_HTTP_ADDR"))(t)
		if got := NewServer(listener, config.HTTPConfig{}, testHandlers(), slog.New(slog.DiscardHandler)).URL(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s…", addr, got, want)
		}
		listener.Close() //nolint:errcheck // no longer needed
	}
}
