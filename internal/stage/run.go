package stage

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/dashboard"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/nats-io/nats.go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Deps are what a stage finds outside itself. A test puts its own in their place; the zero value but for the Logger is
// what the program uses.
type Deps struct {
	// NATS connects; nil: to the server of the configuration, or to an embedded one. Run closes the connection. On a
	// connection given here, batched requests that come while the stage stops are refused rather than left to other
	// replicas: to drain a subscription, the library takes timers that a test in virtual time can't share.
	NATS func() (*nats.Conn, error)
	// DialLLM opens connections to the provider; nil: TCP.
	DialLLM func(ctx context.Context, network, address string) (net.Conn, error)
	// Listener is where metrics, health and dashboard are served; nil: STAGE_HTTP_ADDR. Run closes it.
	Listener net.Listener
	// Reloads asks for secrets to be read again; nil: never.
	Reloads <-chan os.Signal
	// NewInput accepts an input stream that was created anew since the last claim.
	NewInput bool
	// Console is where OTEL_TRACES_EXPORTER=console prints; nil: standard error.
	Console io.Writer
	// Spans is where spans go, whatever OTEL_* say; nil: where they say.
	Spans sdktrace.SpanExporter
	// Logger is required.
	Logger *slog.Logger
}

// Run is the command run: it connects, serves HTTP and works until soft ends, then drains (see STAGE_STOP_TIMEOUT); when
// hard ends it stops at once. It blocks until all that it started has ended. The error is nil after a clean stop.
func Run(soft, hard context.Context, cfg *config.Config, deps Deps) error {
	if _, err := executor.LoadPrompt(cfg); err != nil { // before anything is started or made for it
		return config.Invalid(err)
	}
	server, err := NewLateServer(soft, cfg, deps, false)
	if err != nil {
		return err
	}
	defer server.Close()
	conn, err := deps.connect(soft, cfg)
	switch {
	case err != nil && soft.Err() != nil && hard.Err() == nil:
		return nil // stopped before it began
	case err != nil:
		return err
	}
	defer conn.Close()
	servers, err := call.Open(cfg, deps.DialLLM, llmtest.Config{})
	if err != nil {
		return err
	}
	defer servers.Close()
	s, err := New(cfg, conn, servers, deps.Logger, Options{NewInput: deps.NewInput, Batches: true, Console: deps.Console, Spans: deps.Spans})
	if err != nil {
		return err
	}
	if conn.Server != nil {
		s.Log.Info("embedded NATS server", slog.String("url", conn.Server.URL()), slog.String("token_in", filepath.Join(cfg.Data.Dir, "nats.json")))
	}
	s.Log.Info("started", slog.String("dashboard", server.Start(hard, s)), slog.String("provider", cfg.LLM.Provider), slog.Int("pool_size", cfg.Pool.Size))

	beside, end := context.WithCancel(context.WithoutCancel(hard))
	var parts sync.WaitGroup
	parts.Go(func() { s.LogEvery(beside, nil) })
	parts.Go(func() { s.reloadKeys(beside, deps.Reloads) })
	err = s.Run(soft, hard)
	end()
	parts.Wait()
	return err
}

func (d *Deps) connect(ctx context.Context, cfg *config.Config) (*natsconn.Conn, error) {
	if d.NATS == nil {
		return natsconn.Connect(ctx, cfg, cfg.Data.Dir, d.Logger)
	}
	nc, err := d.NATS()
	if err != nil {
		return nil, err
	}
	return &natsconn.Conn{NC: nc, External: true}, nil
}

// lateServer holds the address of the HTTP server from the start, so that a taken one is found before any work, and serves
// as soon as there is a stage to show.
type lateServer struct {
	listener net.Listener
	endLive  context.CancelFunc
	lived    sync.WaitGroup
	end      context.CancelFunc
	done     sync.WaitGroup
}

// NewLateServer takes the address of the HTTP server; anyPort allows another port where it is taken.
func NewLateServer(ctx context.Context, cfg *config.Config, deps Deps, anyPort bool) (*lateServer, error) {
	if deps.Listener != nil {
		return &lateServer{listener: deps.Listener}, nil
	}
	listener, err := dashboard.Listen(ctx, cfg.HTTP.Addr, anyPort)
	return &lateServer{listener: listener}, err
}

// Start serves the stage and returns the address of the dashboard.
func (l *lateServer) Start(hard context.Context, s *Stage) string {
	ctx, end := context.WithCancel(context.WithoutCancel(hard)) // it shows the stage until the stage has ended
	l.end = end
	living, endLive := context.WithCancel(ctx)
	l.endLive = endLive
	pages := dashboard.NewLive(s.Status, s.history)
	l.lived.Go(func() { pages.Run(living) })
	server := dashboard.NewServer(l.listener, s.Cfg.HTTP, s.httpHandlers(pages), s.Log)
	l.done.Go(func() {
		if err := server.Run(ctx, hard); err != nil {
			s.Log.Error("metrics, health and dashboard are gone", slog.Any("error", err))
		}
	})
	return server.URL()
}

// Close tells the pages that watch how it ended, ends the server and frees the address.
func (l *lateServer) Close() {
	if l.end == nil {
		_ = l.listener.Close()
		return
	}
	l.endLive()
	l.lived.Wait()
	l.end()
	l.done.Wait()
}

// httpHandlers are what the HTTP server shows of the stage.
func (s *Stage) httpHandlers(pages *dashboard.Live) dashboard.Handlers {
	return dashboard.Handlers{
		Metrics: s.metrics.Handler(),
		Ready:   s.ready,
		Status:  func() any { return s.Status() },
		Events:  pages,
	}
}
