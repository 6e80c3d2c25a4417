package stage

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// Deps are the things that a stage finds outside itself, for tests to replace.
// NATS and DialLLM are for tests alone; the program sets the rest.
type Deps struct {
	// NATS connects. If it is nil, the stage connects to the server of the configuration,
	// or to an embedded one. Run closes the connection. On a connection given here,
	// batched requests that arrive while the stage stops are refused rather than left to
	// other replicas: to drain a subscription, the library uses timers that a test in
	// virtual time can't share.
	NATS func() (*nats.Conn, error)
	// DialLLM opens connections to the provider. If it is nil, they are TCP.
	DialLLM func(ctx context.Context, network, address string) (net.Conn, error)
	// MockLLM starts the built-in LLM, for stages with the provider mock and no base URL,
	// or nil.
	MockLLM call.MockLLM
	// Listener serves metrics, health and dashboard. If it is nil, Run listens on
	// STAGE_HTTP_ADDR. Run closes it.
	Listener net.Listener
	// Reloads gets a value when the keys must be read again. It may be nil.
	Reloads <-chan os.Signal
	// Logger is required.
	Logger *slog.Logger
	// Options are the options of [New], except Batches, which Run sets.
	Options
}

// Run is the command run: it connects, serves HTTP, and works until soft ends, then
// drains (see [Stage.Run]). When hard ends it stops at once. It blocks until all that it
// started has ended. The error is nil after a clean stop; otherwise it is the error of
// [Stage.Run], or why there is no connection.
func Run(soft, hard context.Context, cfg *config.Config, deps Deps) error {
	return run(soft, hard, []*config.Config{cfg}, deps)
}

// RunSeveral is [Run] for several stages in one process. They share the connection and
// the HTTP server, so their settings for these are the same, as are those of the log and
// of the time for a stop. Each has a name of its own, and ends alone: its error is
// logged, and the others continue. RunSeveral returns when all have ended, with the error
// of the first that ended with one. A problem that keeps the process from starting, such
// as an error in the settings of one stage, ends all.
func RunSeveral(soft, hard context.Context, cfgs []*config.Config, deps Deps) error {
	deps.several = true
	return run(soft, hard, cfgs, deps)
}

// run runs the stages of one process until all have ended. It fails as early as it can:
// the prompts are read before the address is reserved, the address is reserved before the
// connection is made, and streams are created only once everything else is there.
func run(soft, hard context.Context, cfgs []*config.Config, deps Deps) error {
	for _, cfg := range cfgs {
		if _, err := executor.LoadPrompt(cfg); err != nil {
			return deps.errorOf(cfg, config.Invalid(err))
		}
	}
	server, err := deps.httpServer(soft, cfgs[0])
	if err != nil {
		return err
	}
	defer server.Close()
	conn, err := deps.connect(soft, cfgs[0])
	switch {
	case err != nil && soft.Err() != nil && hard.Err() == nil:
		return nil // stopped before it began
	case err != nil:
		return err
	}
	defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
	defer stopping.Background(hard, func(ctx context.Context) { conn.Keep(ctx, deps.Logger) },
		func(ctx context.Context) { conn.WatchRoom(ctx, deps.Logger) })()

	deps.Batches = true
	deps.slots = newProcessSlots(cfgs[0].MaxConcurrency())
	var stages []*Stage
	for _, cfg := range cfgs {
		targets, err := call.Open(cfg, deps.DialLLM, deps.MockLLM) //nolint:contextcheck // what an identity reads at start bounds itself
		if err != nil {
			return deps.errorOf(cfg, err)
		}
		defer targets.Close()
		if err := FindLane(soft, cfg, conn, deps.Logger); err != nil {
			if soft.Err() != nil {
				return nil // stopped before it began
			}
			return deps.errorOf(cfg, conn.Explain(err))
		}
		s, err := New(cfg, conn, targets, deps.Logger, deps.Options)
		if err != nil {
			return deps.errorOf(cfg, err)
		}
		if len(stages) > 0 {
			s.preparation.before = stages[len(stages)-1].preparation.left
		}
		stages = append(stages, s)
	}

	log := deps.Logger
	if deps.several {
		warnOfProcess(stages...)
	} else {
		log = stages[0].Log
	}
	if conn.Server != nil {
		log.Info("embedded NATS server", slog.String("url", conn.Server.URL()),
			slog.String("token_in", filepath.Join(cfgs[0].Data.Dir, "nats.json")))
	}

	page := server.Start(hard, log, stages...)
	for _, s := range stages {
		s.Log.Info("started", slog.String("dashboard", s.page(page)),
			slog.String("provider", s.Cfg.LLM.Provider), slog.Int("pool_size", s.Cfg.Pool.Size))
	}
	defer startService(hard, deps.Reloads, stages)()
	if !deps.several {
		return stages[0].serve(soft, hard)
	}
	return runEach(soft, hard, stages)
}

// serve runs the stage until it has ended, and then logs the gain of parallel calls, and
// whether more slots of the pool would have brought more.
func (s *Stage) serve(soft, hard context.Context) error {
	err := s.Run(soft, hard)
	if p := s.Summary().Pace; p.CallsS > 0 {
		s.Log.Info("ended", slog.Float64("speedup", p.Speedup), slog.Float64("calls_s", p.CallsS),
			slog.Float64("elapsed_s", p.ElapsedS),
			slog.Float64("utilisation", p.Utilisation), slog.Float64("throttled_s", p.ThrottledS))
	}
	if advice := s.SlotsAdvice(time.Since(s.started)); advice != "" {
		s.Log.Info("size of the pool", slog.Int("pool_size", s.Cfg.Pool.Size),
			slog.String("advice", advice))
	}
	return err
}

// page returns the address of the stage's dashboard, below that of the process.
func (s *Stage) page(process string) string {
	if !s.opts.several {
		return process
	}
	return process + "stages/" + s.Cfg.Name + "/"
}

// errorOf adds to an error the name of the stage that it is about, if there are several.
func (d *Deps) errorOf(cfg *config.Config, err error) error {
	if !d.several {
		return err
	}
	return fmt.Errorf("stage %s: %w", cfg.Name, err)
}

// runEach runs each stage until all have ended, and returns the first error.
func runEach(soft, hard context.Context, stages []*Stage) error {
	var running errgroup.Group // without a context: the others go on
	for _, s := range stages {
		running.Go(func() error {
			err := s.serve(soft, hard)
			s.preparation.leave() // it may have ended before its turn, for which the next one waits
			why := "stopped"
			if err != nil {
				why = err.Error()
				if hard.Err() == nil { // after a hard stop all end, which needs no line for each
					s.Log.Error("this stage has ended, other stages of the process do not depend "+
						"on it", slog.Any("error", err))
				}
				err = fmt.Errorf("stage %s: %w", s.Cfg.Name, err)
			}
			s.ShowEnded(why)
			return err
		})
	}
	return running.Wait()
}

// warnOfProcess logs the shortages of the process in which these stages run.
func warnOfProcess(stages ...*Stage) {
	log := stages[0].Log
	warnOfOpenFiles(log, stages...)
	warnOfOwnServer(stages...)
}

// startService starts the duties of a service besides its rows: each stage logs its
// progress, and all read their keys again at each value of reloads. stop ends both and
// waits for them.
func startService(hard context.Context, reloads <-chan os.Signal, stages []*Stage) (stop func()) {
	var parts []func(context.Context)
	for _, s := range stages {
		parts = append(parts, func(ctx context.Context) { s.LogProgress(ctx, nil) })
	}
	return stopping.Background(hard, append(parts, func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-reloads:
			}
			for _, s := range stages {
				if s.ending.endedBy() == "" { // a stage that has ended needs no key
					s.reloadKey()
				}
			}
		}
	})...)
}

// reloadKey reads the keys of the providers again.
func (s *Stage) reloadKey() {
	changed, err := s.caller.ReloadKey()
	if changed {
		s.executor.Pool.Probe()
	}
	if err != nil {
		s.Log.Error("key not reloaded, keeping the old one", slog.Any("error", err))
		return
	}
	s.Log.Info("key reloaded")
}

// watchKeys puts keys to use whose files change, until ctx ends. A stage that is paused,
// perhaps for the old key, probes at once.
func (s *Stage) watchKeys(ctx context.Context) {
	s.caller.WatchKeys(ctx, s.Log, s.executor.Pool.Probe)
}

// connect connects to NATS, by the function of a test if there is one.
func (d *Deps) connect(ctx context.Context, cfg *config.Config) (*natsconn.Conn, error) {
	if d.NATS == nil {
		return natsconn.Connect(ctx, cfg, cfg.Data.Dir, d.Logger)
	}
	again := natsconn.Reaching(&cfg.NATS,
		func(context.Context) (*nats.Conn, error) { return d.NATS() })
	nc, err := again(ctx)
	if err != nil {
		return nil, err
	}
	conn := natsconn.Over(nc, again)
	conn.External = true
	return conn, nil
}

// httpServer reserves the address of the HTTP server, unless a test gives a listener.
func (d *Deps) httpServer(ctx context.Context, cfg *config.Config) (*HTTPServer, error) {
	if d.Listener != nil {
		return &HTTPServer{listener: d.Listener}, nil
	}
	return NewHTTPServer(ctx, cfg.HTTP.Addr, false)
}
