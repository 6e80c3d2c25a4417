package stage_test

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/process"
)

// config loads the configuration as the program does, from variables.
func (s *laneSim) config() *config.Config {
	s.t.Helper()
	cfg := stagetest.Value(stagetest.Source(s.environ()).Load(s.t.Context(), config.NeedCalls))(s.t)
	cfg.Process.StopTimeout = 2 * time.Minute // what is broken for a while keeps no result from being stored
	return cfg
}

// environ are the variables of the processes that start now.
func (s *laneSim) environ() map[string]string {
	vars := maps.Clone(s.vars)
	if s.laneOff {
		maps.DeleteFunc(vars, func(name, _ string) bool { return strings.HasPrefix(name, "STAGE_LANE") })
	}
	return vars
}

// start starts a process.
func (s *laneSim) start() {
	s.t.Helper()
	s.starts++
	s.processes = append(s.processes, process.Start(s.t, s.broker, s.config(), s.trap.sees,
		func(p *process.Process) http.Handler { return &gate{sim: s, process: p, next: s.llm} },
		stage.Deps{
			MockLLM: llmtest.Config{}.Start,
			Options: stage.Options{CancelBatches: s.starts%4 == 3}, // --cancel-batches
			Logger:  slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With(slog.Int("process", s.starts)),
		}))
}

// status returns what a process says of itself.
func (s *laneSim) status(p *process.Process) string {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://localhost/api/status", nil)
	if err != nil {
		return err.Error()
	}
	web := &http.Client{Transport: &http.Transport{DialContext: p.DialPages, DisableKeepAlives: true}}
	resp, err := web.Do(req)
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

// alive lists the processes that work, and forgets the others.
func (s *laneSim) alive() []*process.Process {
	var all []*process.Process
	for _, p := range s.processes {
		if !p.Over() {
			all = append(all, p)
		} else if p.Err != nil {
			s.note("a process has ended: %v", p.Err)
		}
	}
	s.processes = all
	return all
}
