package job

import (
	"context"
	"io"
	"log/slog"
	"slices"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stopping"
)

// Site is a stage for one job, with its surroundings: embedded server, clients of the
// providers, HTTP server. Create it with [OpenSite]. The caller must close it.
type Site struct {
	Stage *stage.Stage
	HTTP  *stage.HTTPServer // reserves its address; not started
	// CloseCalls closes the idle connections to the providers, once the stage has ended.
	CloseCalls func()

	closers []func() // close the parts, in the order in which these were opened
}

// SiteOptions are the choices of a command about its site. Console and Logger are
// required.
type SiteOptions struct {
	// MaxPayload is the largest message of the embedded server, in bytes, or 0 for the
	// server's default.
	MaxPayload int32
	Mock       call.MockLLM // the built-in LLM, for the provider mock without a base URL, or nil
	Console    io.Writer    // where OTEL_TRACES_EXPORTER=console prints
	// CancelBatches has a stop cancel the open batches of the batch lane at the provider.
	CancelBatches bool
	// Flags are the flags with which commands find the streams, for advice. It is empty
	// if they need nothing but the settings.
	Flags  string
	Logger *slog.Logger
	Files  *media.Files // files that rows may name as pictures, documents and sounds, or nil
	// HTTP is an HTTP server that has reserved its address, which the site closes. If it is
	// nil, OpenSite reserves STAGE_HTTP_ADDR.
	HTTP *stage.HTTPServer
}

// reserveHTTP reserves STAGE_HTTP_ADDR, or a free port of the same host if that one is in
// use.
func reserveHTTP(ctx context.Context, cfg *config.Config) (*stage.HTTPServer, error) {
	return stage.NewHTTPServer(ctx, cfg.HTTP.Addr, true)
}

// OpenSite starts the embedded server on dir and builds the stage. A fatal provider error
// ends the stage, since a job that pauses would never end.
func OpenSite(
	ctx context.Context, cfg *config.Config, dir string, o SiteOptions,
) (_ *Site, err error) {
	s := &Site{HTTP: o.HTTP}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.HTTP == nil {
		if s.HTTP, err = reserveHTTP(ctx, cfg); err != nil {
			return nil, err
		}
	}
	s.closers = append(s.closers, s.HTTP.Close)
	conn, err := natsconn.StartServer(ctx, cfg, dir, o.MaxPayload, o.Logger)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, conn.Close,
		stopping.Background(ctx, func(ctx context.Context) { conn.Keep(ctx, o.Logger) },
			func(ctx context.Context) { conn.WatchRoom(ctx, o.Logger) }))
	targets, err := call.Open(cfg, nil, o.Mock) //nolint:contextcheck // what an identity reads at start bounds itself
	if err != nil {
		return nil, err
	}
	s.closers, s.CloseCalls = append(s.closers, targets.Close), targets.Close
	if err := stage.FindLane(ctx, cfg, conn, o.Logger); err != nil {
		return nil, err
	}
	if s.Stage, err = stage.New(cfg, conn, targets, o.Logger,
		stage.Options{
			ExitOnFatal: true, Console: o.Console, CancelBatches: o.CancelBatches,
			Flags: o.Flags, Files: o.Files,
		}); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends all parts of the site, the last opened first. The stage must not run.
func (s *Site) Close() {
	for _, closePart := range slices.Backward(s.closers) {
		closePart()
	}
}
