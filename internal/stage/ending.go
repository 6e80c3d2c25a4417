package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stopping"
)

// ending is how the run of a stage ends. Its methods are safe for concurrent use.
type ending struct {
	*view
	stop  context.CancelCauseFunc   // ends the run softly; Run sets it before the pool starts
	since atomic.Pointer[time.Time] // when the stop began; nil before
	// why is why the stage has ended. It is set only where the process continues, since
	// it has other stages or shows the last state.
	why atomic.Pointer[string]
}

// drain begins a soft stop because soft has ended: the pool starts no call, and the stop
// becomes a hard one when the time for it has passed.
func (e *ending) drain(soft, hard context.Context, kill context.CancelCauseFunc) {
	waits := e.WaitsFor()
	e.since.Store(&waits.Since)
	e.executor.Pool.Drain()
	if hard.Err() == nil {
		e.logStop(context.Cause(soft), &waits)
	}
	timer := time.AfterFunc(e.Cfg.Process.StopTimeout, func() { kill(e.whyNotStopped()) })
	context.AfterFunc(hard, func() { timer.Stop() })
}

// logStop logs what the stop waits for, if a signal asked for the stop or if something
// keeps results from being stored. Other stops, such as the end of a job, take no time.
func (e *ending) logStop(cause error, waits *status.StopReport) {
	attrs := []any{
		slog.Int("calls_in_flight", waits.Calls), slog.Int("results_to_store", waits.Results),
		slog.String("at_most", e.Cfg.Process.StopTimeout.String()),
	}
	if why := e.problem(); why != "" {
		e.Log.Warn("stopping, waiting for results that can't be stored",
			append(attrs, slog.String("reason", why))...)
		return
	}
	if signal, ok := errors.AsType[*stopping.InterruptError](cause); ok {
		e.Log.Info("stopping, waiting for calls in flight and their results; "+
			"a second signal stops at once",
			append(attrs, slog.String("signal", signal.Signal.String()))...)
	}
}

// stopReport returns what the present stop waits for, or nil if the stage does not stop.
func (e *ending) stopReport() *status.StopReport {
	since := e.since.Load()
	if since == nil {
		return nil
	}
	r := e.WaitsFor()
	r.Since, r.By = *since, since.Add(e.Cfg.Process.StopTimeout)
	return &r
}

// problem returns what keeps results from being stored, or "" if nothing does.
func (e *ending) problem() string {
	var all []string
	for _, c := range e.consumers {
		// Most problems, such as a lost connection, are the same for all partitions.
		if why := c.Status().Problem; why != "" && !slices.Contains(all, why) {
			all = append(all, why)
		}
	}
	return strings.Join(all, "; ")
}

// whyNotStopped returns the cause of the hard stop when the time for a soft one has
// passed.
func (e *ending) whyNotStopped() error {
	limit := e.Cfg.Process.StopTimeout
	if why := e.problem(); why != "" {
		return fmt.Errorf("results were not stored within %v of the stop: %s", limit, why)
	}
	return fmt.Errorf("calls in flight did not end within %v of the stop", limit)
}

// endedBy returns why the stage has ended while its process continues, or "" if it has
// not.
func (e *ending) endedBy() string {
	if why := e.why.Load(); why != nil {
		return *why
	}
	return ""
}

// ShowEnded makes the status say why the stage has ended, where its process continues.
// Run must have returned. It is safe for concurrent use.
func (s *Stage) ShowEnded(why string) { s.ending.why.Store(&why) }
