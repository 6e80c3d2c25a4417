package stage

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/nats-io/nats.go"
)

// Deps are what a stage finds outside itself, for tests to replace. The program sets Logger, Reloads, Console and
// NewInput.
type Deps struct {
	// NATS connects; nil: to the server of the configuration, or to an embedded one. Run closes the connection. On a
	// connection given here, batched requests that arrive while the stage stops are refused rather than left to other
	// replicas: to drain a subscription, the library uses timers that a test in virtual time can't share.
	NATS func() (*nats.Conn, error)
	// DialLLM opens connections to the provider; nil: TCP.
	DialLLM func(ctx context.Context, network, address string) (net.Conn, error)
	// Listener serves metrics, health and dashboard; nil: one on STAGE_HTTP_ADDR. Run closes it.
	Listener net.Listener
	// Reloads gets a value when the key must be read again; nil: never.
	Reloads <-chan os.Signal
	// Logger is required.
	Logger *slog.Logger
	// Options are those of [New]; Run sets Batches.
	Options
}

// Run is the command run: it connects, serves HTTP, and works until soft ends, then drains (see STAGE_STOP_TIMEOUT);
// when hard ends it stops at once. It blocks until all that it started has ended. The error is nil after a clean stop,
// else that of [Stage.Run], or why there is no connection.
func Run(soft, hard context.Context, cfg *config.Config, deps Deps) error {
	if _, err := executor.LoadPrompt(cfg); err != nil { // before anything is started or created
		return config.Invalid(err)
	}
	server, err := deps.httpServer(soft, cfg)
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
	targets, err := call.Open(cfg, deps.DialLLM, llmtest.Config{})
	if err != nil {
		return err
	}
	defer targets.Close()
	deps.Batches = true
	s, err := New(cfg, conn, targets, deps.Logger, deps.Options)
	if err != nil {
		return err
	}
	if conn.Server != nil {
		s.Log.Info("embedded NATS server", slog.String("url", conn.Server.URL()), slog.String("token_in", filepath.Join(cfg.Data.Dir, "nats.json")))
	}
	s.Log.Info("started", slog.String("dashboard", server.Start(hard, s)), slog.String("provider", cfg.LLM.Provider), slog.Int("pool_size", cfg.Pool.Size))
	defer s.startService(hard, deps.Reloads)()
	return s.Run(soft, hard)
}

// startService starts what a service does besides its rows: it logs its progress, and reads its key again at each value
// of reloads. stop ends both and waits for them.
func (s *Stage) startService(hard context.Context, reloads <-chan os.Signal) (stop func()) {
	progress := func(ctx context.Context) { s.LogProgress(ctx, nil) }
	return stopping.Background(hard, progress, func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-reloads:
			}
			if err := s.caller.ReloadKey(); err != nil {
				s.Log.Error("key not reloaded, keeping the old one", slog.Any("error", err))
				continue
			}
			s.Log.Info("key reloaded")
		}
	})
}

// connect connects to NATS.
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

// httpServer reserves the address of the HTTP server.
func (d *Deps) httpServer(ctx context.Context, cfg *config.Config) (*HTTPServer, error) {
	if d.Listener != nil {
		return &HTTPServer{listener: d.Listener}, nil
	}
	return NewHTTPServer(ctx, cfg.HTTP.Addr, false)
}
