package chain_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/llm-stage/stage/test/chain"
	"github.com/nats-io/nats.go"
)

// process is one process of a stage.
type process struct {
	*site

	stage int
	begun time.Time
	wire  *stagetest.Wire
	nc    *nats.Conn
	soft  context.CancelFunc
	hard  context.CancelFunc
	done  chan struct{} // closed when it has ended
	err   error         // once done is closed
}

// config loads the configuration of a stage as the program does, from variables.
func (s *site) config(of int) *config.Config {
	s.t.Helper()
	vars := s.pipeline.Environ(of)
	maps.Copy(vars, s.vars)
	cfg, err := config.Source{Environ: vars}.Load(s.t.Context(), config.NeedCalls)
	if err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

// start starts a process of a stage.
func (s *site) start(of int) *process {
	s.t.Helper()
	cfg := s.config(of)
	s.starts++
	name := s.starts
	p := &process{site: s, stage: of, begun: time.Now(), done: make(chan struct{})}
	p.wire = &stagetest.Wire{Broker: s.broker, Sees: p.sees, Dies: p.end}
	p.nc = s.broker.Connect(p.wire)
	llm, pages := llmtest.NewPipeListener(), llmtest.NewPipeListener()
	srv := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
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
			Logger:   slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With(slog.Int("process", name)),
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
	return p
}

// ServeHTTP is the LLM as the process sees it: nothing of a process that is dead arrives.
func (p *process) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.wire.Dead() {
		panic(http.ErrAbortHandler)
	}
	p.llm.ServeHTTP(w, r)
}

// sees is [stagetest.Wire]'s Sees.
func (p *process) sees(data []byte) (arrives int) { return p.trap.sees(chain.Name(p.stage), data) }

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

// stop stops the process as SIGTERM does.
func (p *process) stop() {
	p.t.Helper()
	p.soft()
	p.until("the stop of a process", p.over)
	if p.err != nil && !p.wire.Dead() {
		p.t.Errorf("run: %v", p.err)
	}
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

// alive lists the processes of a stage that work, and forgets those that don't.
func (s *site) alive(of int) (all []*process) {
	left := s.processes[:0]
	for _, p := range s.processes {
		if p.over() {
			continue
		}
		if left = append(left, p); p.stage == of {
			all = append(all, p)
		}
	}
	s.processes = left
	return all
}
