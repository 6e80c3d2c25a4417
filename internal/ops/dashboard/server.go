package dashboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stopping"
)

// Bounds of the HTTP server, besides [MaxConns]. Its clients are scrapers, probes and
// browsers: small requests and responses.
const (
	// ReadTimeout bounds the reading of a request, and also of its header alone.
	ReadTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second // extended by a handler that streams
	// IdleTimeout bounds how long a connection may be idle.
	IdleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	// closeGrace and hardCloseGrace are how long a stop, or a hard stop, waits for requests
	// that are being answered.
	closeGrace     = 2 * time.Second
	hardCloseGrace = 300 * time.Millisecond
)

// Routes are what the HTTP server serves: [Handlers] of one stage, or [*Site] of several.
type Routes interface {
	// mux routes the requests for hosts that the check allows, and those for health and
	// metrics of all.
	mux(hosts hostCheck) *http.ServeMux
}

// Handlers are what the HTTP server serves of one stage. All are required.
type Handlers struct {
	// Metrics serves /metrics.
	Metrics http.Handler
	// Ready answers /readyz. It reports whether the stage is connected, owning or standing
	// by, and not paused, and otherwise why it is not ready.
	Ready func() (ready bool, reason string)
	// Status returns what /api/status writes as JSON. It must not block.
	Status func() any
	// Whole returns what /api/stage writes as JSON: the stage as all its replicas report
	// it. It may take as long as they are waited for, and ends with ctx.
	Whole func(ctx context.Context) any
	// Control serves POST /api/control, by which viewers of the page may steer the stage.
	// It is nil where they may not.
	Control http.Handler
	// Events serves /api/events, until the client leaves or the events end.
	Events http.Handler
	// Rows answers /api/row and /api/failures.
	Rows Rows
}

// Server serves metrics, health, status and dashboard. Create it with [NewServer], run it
// once with [Server.Run].
type Server struct {
	listener net.Listener
	server   *http.Server
}

// Listen listens on addr, host:port, the address of a setting that the error names. If
// the port is in use and anyPort is set, it takes a free one of the same host.
func Listen(ctx context.Context, addr string, anyPort bool, setting string) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && anyPort {
		host, _, splitErr := net.SplitHostPort(addr)
		if splitErr != nil {
			return nil, splitErr
		}
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		cause := err
		if opError, ok := errors.AsType[*net.OpError](err); ok {
			cause = opError.Err // the rest repeats the address
		}
		return nil, fmt.Errorf("listen on %s: %w: free it, or set another %s", addr, cause, setting)
	}
	return listener, nil
}

// NewServer returns a server on the listener, which Run closes. It answers requests for
// the host names that cfg allows.
func NewServer(listener net.Listener, cfg config.HTTPConfig, routes Routes, log *slog.Logger) *Server {
	own, err := os.Hostname()
	if err != nil {
		own = "" // then that name is not allowed
	}
	return &Server{
		listener: listener,
		server: &http.Server{
			Handler:           guarded(routes, newHostCheck(listener.Addr(), cfg, own)),
			ReadTimeout:       ReadTimeout,
			ReadHeaderTimeout: ReadTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       IdleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ConnState:         newConnBound(MaxConns).note,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}
}

// URL returns the address to open in a browser on this machine.
func (s *Server) URL() string { return URL(s.listener) }

// URL returns the address to open in a browser on this machine for a server on the
// listener.
func URL(listener net.Listener) string {
	addr := listener.Addr().String()
	host, port, err := net.SplitHostPort(addr)
	if ip, ipErr := netip.ParseAddr(host); err == nil && ipErr == nil && ip.IsUnspecified() {
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + addr + "/"
}

// Run serves until ctx ends, and ends handlers that stream with it. Otherwise it is
// [ServeUntil].
func (s *Server) Run(ctx, hard context.Context) error {
	s.server.BaseContext = func(net.Listener) context.Context { return ctx }
	return ServeUntil(ctx, hard, s.server, s.listener)
}

// ServeUntil serves until soft ends, then waits for requests that are being answered: 2
// s, or 300 ms after the end of hard. It closes the listener, and blocks until all that
// it started has ended. The error is nil unless the server failed before soft ended.
func ServeUntil(soft, hard context.Context, server *http.Server, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
	case <-soft.Done():
		grace, cancel := stopping.Within(hard, closeGrace, hardCloseGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close() //nolint:errcheck // the listener is closed; open connections are cut
		}
		err = <-failed
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
}

// guarded routes the requests that the check allows.
func guarded(routes Routes, hosts hostCheck) http.Handler {
	guarded := hosts.guard(routes.mux(hosts))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		guarded.ServeHTTP(w, r)
	})
}

// mux implements [Routes].
func (h Handlers) mux(hosts hostCheck) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h.Metrics)
	mux.HandleFunc("GET /healthz", serveHealthy)
	mux.HandleFunc("GET /readyz", h.serveReady(hosts))
	mux.HandleFunc("GET /api/status", h.serveStatus)
	mux.HandleFunc("GET /api/stage", h.serveWhole)
	mux.Handle("GET /api/events", h.Events)
	if h.Control != nil {
		mux.Handle("POST /api/control", h.Control)
	}
	rows := newRowsServer(h.Rows)
	mux.HandleFunc("GET /api/row", rows.serveRow)
	mux.HandleFunc("GET /api/failures", rows.serveFailures)
	mux.HandleFunc("/api/", http.NotFound)
	mux.Handle("/", newPage())
	return mux
}

// serveHealthy answers /healthz: the process runs.
func serveHealthy(w http.ResponseWriter, _ *http.Request) { writePlain(w, http.StatusOK, "ok") }

// hiddenReason takes the place of a reason for hosts that are not known.
const hiddenReason = "not ready; the reason is shown to localhost, IP addresses and the names of STAGE_HTTP_HOSTS"

// serveReady shows the reason to known hosts only: it may quote the provider, which may
// quote a row.
func (h Handlers) serveReady(hosts hostCheck) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ready, reason := h.Ready()
		switch {
		case ready:
			writePlain(w, http.StatusOK, "ok")
		case hosts.allows(r.Host):
			writePlain(w, http.StatusServiceUnavailable, reason)
		default:
			writePlain(w, http.StatusServiceUnavailable, hiddenReason)
		}
	}
}

// serveStatus serves /api/status.
func (h Handlers) serveStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, h.Status())
}

// serveWhole serves /api/stage.
func (h Handlers) serveWhole(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, h.Whole(r.Context()))
}

// writePlain answers with a line of text.
func writePlain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintln(w, text) //nolint:errcheck // the client has gone
}
