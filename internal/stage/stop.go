package stage

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stopping"
)

// drain begins a soft stop because soft has ended: the pool starts no call, and the stop
// becomes a hard one when the time for it has passed.
func (s *Stage) drain(soft, hard context.Context, kill context.CancelCauseFunc) {
	waits := s.WaitsFor()
	s.ending.since.Store(&waits.Since)
	s.executor.Pool.Drain()
	if hard.Err() == nil {
		s.logStop(context.Cause(soft), &waits)
	}
	timer := time.AfterFunc(s.Cfg.Process.StopTimeout, func() { kill(s.whyNotStopped()) })
	context.AfterFunc(hard, func() { timer.Stop() })
}

// logStop logs what a stop waits for, where someone asked for it or it is blocked.
func (s *Stage) logStop(cause error, waits *status.StopReport) {
	attrs := []any{
		slog.Int("calls_in_flight", waits.Calls), slog.Int("results_to_store", waits.Results), slog.String("at_most", s.Cfg.Process.StopTimeout.String()),
	}
	if why := s.problem(); why != "" {
		s.Log.Warn("stopping, waiting for results that can't be stored", append(attrs, slog.String("reason", why))...)
		return
	}
	if signal, ok := errors.AsType[*stopping.InterruptError](cause); ok {
		s.Log.Info("stopping, waiting for calls in flight and their results; a second signal stops at once", append(attrs, slog.String("signal", signal.Signal.String()))...)
	}
}

// WaitsFor returns what a stop that begins now would wait for. Safe for concurrent use.
func (s *Stage) WaitsFor() status.StopReport {
	now := time.Now()
	r := status.StopReport{Since: now.UTC(), By: now.UTC().Add(s.Cfg.Process.StopTimeout), Calls: s.executor.Pool.Stats().InFlight}
	for _, c := range s.consumers {
		r.Results += c.Status().Buffered
	}
	return r
}

// stopReport returns what the stop under way waits for; nil means that the stage does not
// stop.
func (s *Stage) stopReport() *status.StopReport {
	since := s.ending.since.Load()
	if since == nil {
		return nil
	}
	r := s.WaitsFor()
	r.Since, r.By = *since, since.Add(s.Cfg.Process.StopTimeout)
	return &r
}
