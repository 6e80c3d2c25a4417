package lane_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/nats-io/nats.go"
)

// process is one process of the stage.
type process struct {
	sim  *sim
	name int
	wire *stagetest.Wire
	nc   *nats.Conn
	soft context.CancelFunc
	hard context.CancelFunc
	done chan struct{} // closed when it has ended
	err  error         // once done is closed
	web  *http.Client  // of its pages
}

// config loads the configuration as the program does, from variables.
func (s *sim) config() *config.Config {
	s.t.Helper()
	cfg, err := config.Source{Environ: s.vars}.Load(s.t.Context(), config.NeedCalls)
	if err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

// start starts a process.
func (s *sim) start() {
	s.t.Helper()
	cfg := s.config()
	s.starts++
	p := &process{sim: s, name: s.starts, done: make(chan struct{})}
	p.wire = &stagetest.Wire{Broker: s.broker, Sees: s.trap.sees, Dies: p.end}
	p.nc = s.broker.Connect(p.wire)
	llm, pages := llmtest.NewPipeListener(), llmtest.NewPipeListener()
	p.web = &http.Client{Transport: &http.Transport{DialContext: pages.DialContext, DisableKeepAlives: true}}
	srv := &http.Server{Handler: &gate{process: p, next: s.llm}, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(llm)
	}()
	soft, stop := context.WithCancel(s.t.Context())
	hard, kill := context.WithCancel(context.WithoutCancel(s.t.Context()))
	p.soft, p.hard = stop, kill
	go func() {
		defer close(p.done)
		p.err = stage.Run(soft, hard, cfg, stage.Deps{
			NATS:     func() (*nats.Conn, error) { return p.nc, nil },
			DialLLM:  llm.DialContext,
			Listener: pages,
			Options:  stage.Options{CancelBatches: p.name%4 == 3}, // --cancel-batches
			Logger:   slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With(slog.Int("process", p.name)),
		})
	}()
	s.t.Cleanup(func() {
		kill()
		stop()
		<-p.done
		_ = srv.Close()
		<-served
	})
	s.processes = append(s.processes, p)
}

// end ends what runs of a process that is dead. It does not block.
func (p *process) end() {
	p.hard()
	p.soft()
	go p.nc.Close()
}

// die ends the process as a crash would: nothing more of it reaches anybody.
func (p *process) die() {
	p.wire.Die()
	p.end()
}

// status returns what the process says of itself.
func (p *process) status() string {
	req, err := http.NewRequestWithContext(p.sim.t.Context(), http.MethodGet, "http://localhost/api/status", nil)
	if err != nil {
		return err.Error()
	}
	resp, err := p.web.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// over reports whether the process has ended or is dead.
func (p *process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return p.wire.Dead()
	}
}

// alive lists the processes that work, and forgets the others.
func (s *sim) alive() []*process {
	var all []*process
	for _, p := range s.processes {
		if !p.over() {
			all = append(all, p)
		}
	}
	s.processes = all
	return all
}
