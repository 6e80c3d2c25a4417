package stage_test

import (
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/chain"
	"github.com/llm-stage/stage/test/process"
)

// worker is one process of a stage.
type worker struct {
	*process.Process

	stage int
	begun time.Time
}

// config loads the configuration of a stage as the program does, from variables.
func (s *chainSite) config(of int) *config.Config {
	s.t.Helper()
	vars := s.pipeline.Environ(of)
	maps.Copy(vars, s.vars)
	cfg := stagetest.Value(stagetest.Source(vars).Load(s.t.Context(), config.NeedCalls))(s.t)
	cfg.Process.StopTimeout = 2 * time.Minute // what is broken for a while keeps no result from being stored
	return cfg
}

// start starts a process of a stage.
func (s *chainSite) start(of int) *worker {
	s.t.Helper()
	s.starts++
	p := &worker{stage: of, begun: time.Now()}
	p.Process = process.Start(s.t, s.broker, s.config(of),
		func(data []byte) int { return s.trap.sees(chain.Name(of), data) },
		func(*process.Process) http.Handler { return s.llm },
		stage.Deps{MockLLM: llmtest.Config{}.Start, Logger: slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With(slog.Int("process", s.starts))})
	s.processes = append(s.processes, p)
	return p
}

// stopOne stops a process as SIGTERM does.
func (s *chainSite) stopOne(p *worker) {
	s.t.Helper()
	p.Soft()
	s.until("the stop of a process", p.Over)
	if p.Err != nil && !p.Wire.Dead() {
		s.t.Errorf("run: %v", p.Err)
	}
}

// alive lists the processes of a stage that work, and forgets those that don't.
func (s *chainSite) alive(of int) (all []*worker) {
	left := s.processes[:0]
	for _, p := range s.processes {
		if p.Over() {
			continue
		}
		if left = append(left, p); p.stage == of {
			all = append(all, p)
		}
	}
	s.processes = left
	return all
}
