package stage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/pool"
)

// reminderEvery is the time between two log lines about the same pause.
const reminderEvery = time.Minute

// paused is called by the pool when it pauses. It must not block.
func (s *Stage) paused(p pool.Pause, exit bool) {
	t := s.caller.At(p.Server)
	attrs := []any{
		slog.String("error", status.PauseError(p)), slog.Time("since", p.Since), slog.Time("next_probe", p.Next), slog.String("provider", t.Provider()),
	}
	var fatal error
	switch p.Kind {
	case pool.Outage:
		if !p.Absent.IsZero() {
			s.Log.Error("paused: nothing listens at the provider's address; calls begin when the server is started", attrs...)
		} else if s.Cfg.Rows.OutageHold > 0 {
			s.Log.Error("paused: the provider is down; rows are held for STAGE_OUTAGE_HOLD, calls resume when it answers", attrs...)
		} else {
			s.Log.Error("paused: the provider is down; no row is lost, calls resume when it answers", attrs...)
		}
	case pool.Shortage:
		s.Log.Error("paused: this machine is short of a resource; no row is lost, calls resume when it is available", attrs...)
	case pool.Operator:
		s.Log.Warn("paused by an operator: calls in flight end, rows are held until stage resume, or until this process ends",
			slog.String("error", status.PauseError(p)), slog.Time("since", p.Since))
	case pool.WrongSettings:
		fatal = fmt.Errorf("wrong settings: the provider refuses every row: %s", status.PauseError(p))
		s.Log.Error("paused: the provider refuses every row, so the settings are wrong; no row is lost", attrs...)
	case pool.FatalError, pool.NotPaused:
		fatal = p.Err
		if h, _ := status.OfPause(p); h.Kind != hold.CostCeiling {
			fatal = fmt.Errorf("fatal provider error: %w", p.Err)
		}
		s.Log.Error("paused: no call can succeed until this is fixed; no row is lost", attrs...)
	}
	s.recordRun(auditlog.PhasePause, status.PauseText(p, s.rowsOfAPause(), time.Now()), nil)
	select {
	case s.pausing <- struct{}{}:
	default:
	}
	if exit && fatal != nil {
		s.ending.stop(&FatalError{Err: fatal})
	}
}

// resumed is called by the pool when a pause is over. It must not block.
func (s *Stage) resumed(p pool.Pause) {
	t := s.caller.At(p.Server)
	lasted := time.Since(p.Since).Round(time.Millisecond)
	attrs := []any{slog.String("provider", t.Provider()), lastedAttr(lasted), slog.Int("probes", p.Probes)}
	h, _ := status.OfPause(p)
	over := fmt.Sprintf("%s is over after %v, %d probes", h.Kind, lasted, p.Probes)
	switch {
	case p.Passed:
		to := s.fallbackNames()
		s.Log.Warn("the provider is down, rows go to the fallbacks until a probe succeeds", append(attrs, slog.String("fallbacks", to))...)
		over = fmt.Sprintf("%s is down; rows go to %s until a probe succeeds", t.Provider(), to)
	case p.Kind == pool.Operator:
		s.Log.Info("resumed by an operator", lastedAttr(lasted))
		over = fmt.Sprintf("operator's pause is over after %v", lasted)
	case !p.Absent.IsZero():
		s.Log.Info("resumed: the server is up", attrs...)
		over = fmt.Sprintf("the server is up after %v, %d probes", lasted, p.Probes)
	case p.Kind == pool.Outage:
		attrs = append(attrs, slog.Int("calls_without_reply", p.Lost))
		if s.Cfg.Rows.OutageHold > 0 {
			s.Log.Info("resumed: the provider answers again", attrs...)
		} else {
			s.Log.Info("resumed: the provider answers again, no row was lost", attrs...)
		}
		over += fmt.Sprintf("; %d calls were sent without a usable reply (may have been billed)", p.Lost)
	default:
		s.Log.Info("resumed: calls succeed again", attrs...)
	}
	s.recordRun(auditlog.PhaseResume, over, nil)
}

// lastedAttr says how long a pause, or another wait, has lasted.
func lastedAttr(d time.Duration) slog.Attr {
	return slog.Float64("lasted_ms", terminal.Milliseconds(d))
}

// fallbackNames lists the fallbacks in their order.
func (s *Stage) fallbackNames() string {
	var names []string
	for i := 1; i < s.caller.Len(); i++ {
		t := s.caller.At(i)
		names = append(names, t.Provider()+"/"+t.Model())
	}
	return strings.Join(names, ", ")
}

// shortage is called by the pool when a shortage of this machine begins to limit the
// calls in flight, and with nil when it is over. It must not block.
func (s *Stage) shortage(err error) {
	if err == nil {
		s.Log.Info("this machine is no longer short of a resource")
		return
	}
	s.Log.Warn("this machine is short of a resource; fewer calls are in flight, no row is lost", slog.Any("error", err))
	s.activity.Notice("warn", "fewer calls are in flight: "+err.Error())
}

// remind logs a pause once a minute while it lasts, until ctx ends.
func (s *Stage) remind(ctx context.Context) {
	tick := time.NewTicker(reminderEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.pausing:
			tick.Reset(reminderEvery)
		case <-tick.C:
			snap := s.snapshot()
			if h := snap.Holds.Paused(); h != nil {
				attrs := []any{slog.String("reason", string(h.Kind)), slog.String("error", h.Why), slog.Time("since", h.Since), slog.Int("probes", snap.Pool.Pause.Probes)}
				if !h.Next.IsZero() { // else an operator has paused it
					attrs = append(attrs, slog.Time("next_probe", h.Next))
				}
				s.Log.Warn("still paused, rows are held", attrs...)
			}
		case <-ctx.Done():
			return
		}
	}
}

// rowsOfAPause describes what becomes of the rows that wait for the end of a pause.
func (s *Stage) rowsOfAPause() string {
	if most := s.Cfg.Rows.OutageHold; most > 0 {
		return "rows are held, and fail after " + most.String()
	}
	return "no row is lost"
}
