package stage

import (
	"context"
	"log/slog"
	"net"

	"github.com/llm-stage/stage/internal/ops/dashboard"
	"github.com/llm-stage/stage/internal/ops/metrics"
	"github.com/llm-stage/stage/internal/stopping"
)

// HTTPServer serves metrics, health and dashboard of a stage, or of several. It reserves
// its address at start-up, before there is a stage, so that a conflict fails early.
// Create it with [NewHTTPServer]. The caller must close it.
type HTTPServer struct {
	listener net.Listener
	stop     func() // nil until Start
}

// NewHTTPServer reserves addr, which is host:port. With anyPort it takes a free port of
// the same host if that one is in use: a job must not fail because another one runs.
func NewHTTPServer(ctx context.Context, addr string, anyPort bool) (*HTTPServer, error) {
	listener, err := dashboard.Listen(ctx, addr, anyPort, "STAGE_HTTP_ADDR")
	if err != nil {
		return nil, err
	}
	return &HTTPServer{listener: listener}, nil
}

// Start serves the stage until Close and returns the address of the dashboard. With
// several stages, each has a page of its own below the page of all. When hard ends,
// requests are cut off sooner.
func (h *HTTPServer) Start(hard context.Context, log *slog.Logger, stages ...*Stage) string {
	var runs []func(context.Context)
	site := dashboard.Site{}
	var all []*metrics.Metrics
	for _, s := range stages {
		whole := func(ctx context.Context) any { return s.Whole(ctx) }
		events := dashboard.NewLive(s.Status, whole, s.history)
		runs = append(runs, events.Run)
		all = append(all, s.metrics)
		site.Stages = append(site.Stages,
			dashboard.Entry{Name: s.Cfg.Name, State: s.state, Handlers: dashboard.Handlers{
				Metrics: s.metrics.Handler(),
				Ready:   s.ready,
				Status:  func() any { return s.Status() },
				Whole:   whole,
				Control: s.steering.page(),
				Events:  events,
				Rows:    dashboard.Rows{Story: s.story, Failures: s.failures},
			}})
	}

	var routes dashboard.Routes = &site
	if stages[0].opts.several {
		site.Metrics = metrics.HandlerOfSeveral(all)
	} else {
		routes = site.Stages[0].Handlers
	}

	server := dashboard.NewServer(h.listener, stages[0].Cfg.HTTP, routes, log)

	stopServer := stopping.Background(hard, func(ctx context.Context) {
		if err := server.Run(ctx, hard); err != nil {
			log.Error("HTTP server failed, no metrics, health or dashboard", slog.Any("error", err))
		}
	})
	stopEvents := stopping.Background(hard, runs...)
	h.stop = func() {
		stopEvents() // first, so that the pages get the last state
		stopServer()
	}
	return server.URL()
}

// Close sends the last state to the pages that watch, ends the server and frees the
// address.
func (h *HTTPServer) Close() {
	if h.stop == nil {
		_ = h.listener.Close()
		return
	}
	h.stop()
}
