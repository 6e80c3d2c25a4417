package stage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/pool"
)

// reminderEvery is the time between two log lines about the same pause.
const reminderEvery = time.Minute

const (
	// absentPatience is how long a job waits for a server that has not been started. A
	// server that is started beside the job is up by then; and a person who forgot to
	// start it, or mistyped the address, still looks at the screen. A service waits
	// without end.
	absentPatience = 30 * time.Second
	absentCheck    = time.Second
)

const (
	// refusedFirst is how long the provider may refuse every call before a warning, and
	// refusedAgain is the time between two warnings. Some refusals are normal: by them
	// the throttle finds the rate.
	refusedFirst = time.Minute
	refusedAgain = 10 * time.Minute
	refusedLook  = 5 * time.Second
)

// pauses reports what keeps calls from being made: a pause of the pool, a shortage of
// this machine, a provider that refuses every call. It ends a run that must not wait for
// that. The pool calls paused, resumed and shortage from its own goroutine, so they must
// not block.
type pauses struct {
	*view
	exit   bool          // a fatal error ends the run
	began  chan struct{} // holds a token once a pause has begun, so that remind counts from then
	record func(e auditlog.Run)
}

// paused logs and records a pause, which the pool reports when it begins. It ends a run
// that must not wait for the end of a fatal error. It must not block.
func (ps *pauses) paused(p pool.Pause) {
	t := ps.caller.At(p.Server)
	attrs := []any{
		slog.String("error", status.PauseError(p)), slog.Time("since", p.Since),
		slog.Time("next_probe", p.Next), slog.String("provider", t.Provider()),
	}
	var fatal error
	switch p.Kind {
	case pool.Outage:
		if !p.Absent.IsZero() {
			ps.Log.Error("paused: nothing listens at the provider's address; "+
				"calls begin when the server is started", attrs...)
		} else if ps.Cfg.Rows.OutageHold > 0 {
			ps.Log.Error("paused: the provider is down; rows are held for STAGE_OUTAGE_HOLD, "+
				"calls resume when it answers", attrs...)
		} else {
			ps.Log.Error("paused: the provider is down; no row is lost, "+
				"calls resume when it answers", attrs...)
		}
	case pool.Shortage:
		ps.Log.Error("paused: this machine is short of a resource; "+
			"no row is lost, calls resume when it is available", attrs...)
	case pool.Operator:
		ps.Log.Warn("paused by an operator: calls in flight end, "+
			"rows are held until stage resume, or until this process ends",
			slog.String("error", status.PauseError(p)), slog.Time("since", p.Since))
	case pool.WrongSettings:
		fatal = fmt.Errorf("wrong settings: the provider refuses every row: %s",
			status.PauseError(p))
		ps.Log.Error("paused: the provider refuses every row, so the settings are wrong; "+
			"no row is lost", attrs...)
	case pool.FatalError, pool.NotPaused:
		fatal = p.Err
		if h, _ := status.OfPause(p); h.Kind != hold.CostCeiling {
			fatal = fmt.Errorf("fatal provider error: %w", p.Err)
		}
		ps.Log.Error("paused: no call can succeed until this is fixed; no row is lost", attrs...)
	}
	ps.record(auditlog.Run{
		Phase:  auditlog.PhasePause,
		Reason: status.PauseText(p, rowsOfAPause(ps.Cfg), time.Now()),
	})
	select {
	case ps.began <- struct{}{}:
	default:
	}

	if ps.exit && fatal != nil {
		ps.ending.stop(&FatalError{Err: fatal})
	}
}

// resumed logs and records the end of a pause. The pool calls it also when it begins to
// use the fallbacks while the provider is still down (Passed). It must not block.
func (ps *pauses) resumed(p pool.Pause) {
	t := ps.caller.At(p.Server)
	lasted := time.Since(p.Since).Round(time.Millisecond)
	attrs := []any{
		slog.String("provider", t.Provider()), lastedAttr(lasted),
		slog.Int("probes", p.Probes),
	}
	h, _ := status.OfPause(p)
	over := fmt.Sprintf("%s is over after %v, %d probes", h.Kind, lasted, p.Probes)
	switch {
	case p.Passed:
		to := ps.fallbackNames()
		ps.Log.Warn("the provider is down, rows go to the fallbacks until a probe succeeds",
			append(attrs, slog.String("fallbacks", to))...)
		over = fmt.Sprintf("%s is down; rows go to %s until a probe succeeds", t.Provider(), to)
	case p.Kind == pool.Operator:
		ps.Log.Info("resumed by an operator", lastedAttr(lasted))
		over = fmt.Sprintf("operator's pause is over after %v", lasted)
	case !p.Absent.IsZero():
		ps.Log.Info("resumed: the server is up", attrs...)
		over = fmt.Sprintf("the server is up after %v, %d probes", lasted, p.Probes)
	case p.Kind == pool.Outage:
		attrs = append(attrs, slog.Int("calls_without_reply", p.Lost))
		if ps.Cfg.Rows.OutageHold > 0 {
			ps.Log.Info("resumed: the provider answers again", attrs...)
		} else {
			ps.Log.Info("resumed: the provider answers again, no row was lost", attrs...)
		}
		over += fmt.Sprintf("; %d calls were sent without a usable reply (may have been billed)",
			p.Lost)
	default:
		ps.Log.Info("resumed: calls succeed again", attrs...)
	}
	ps.record(auditlog.Run{Phase: auditlog.PhaseResume, Reason: over})
}

// lastedAttr returns the attribute for how long a pause or another wait has lasted.
func lastedAttr(d time.Duration) slog.Attr {
	return slog.Float64("lasted_ms", terminal.Milliseconds(d))
}

// fallbackNames lists the fallbacks in their order.
func (ps *pauses) fallbackNames() string {
	var names []string
	for i := 1; i < ps.caller.Len(); i++ {
		t := ps.caller.At(i)
		names = append(names, t.Provider()+"/"+t.Model())
	}
	return strings.Join(names, ", ")
}

// shortage logs when a shortage of this machine, for example of descriptors, begins to
// limit the calls in flight, and with nil that it is over. It must not block.
func (ps *pauses) shortage(err error) {
	if err == nil {
		ps.Log.Info("this machine is no longer short of a resource")
		return
	}
	ps.Log.Warn("this machine is short of a resource; fewer calls are in flight, no row is lost",
		slog.Any("error", err))
	ps.activity.Notice("warn", "fewer calls are in flight: "+err.Error())
}

// remind logs a pause once a minute while it lasts, until ctx ends.
func (ps *pauses) remind(ctx context.Context) {
	tick := time.NewTicker(reminderEvery)
	defer tick.Stop()
	for {
		select {
		case <-ps.began:
			tick.Reset(reminderEvery)
		case <-tick.C:
			snap := ps.snapshot()
			if h := snap.Holds.Paused(); h != nil {
				attrs := []any{
					slog.String("reason", string(h.Kind)), slog.String("error", h.Why),
					slog.Time("since", h.Since), slog.Int("probes", snap.Pool.Pause.Probes),
				}
				if !h.Next.IsZero() { // it is zero if an operator has paused the stage
					attrs = append(attrs, slog.Time("next_probe", h.Next))
				}
				ps.Log.Warn("still paused, rows are held", attrs...)
			}
		case <-ctx.Done():
			return
		}
	}
}

// rowsOfAPause describes what becomes of the rows that wait for the end of a pause.
func rowsOfAPause(cfg *config.Config) string {
	if most := cfg.Rows.OutageHold; most > 0 {
		return "rows are held, and fail after " + most.String()
	}
	return "no row is lost"
}

// giveUpAbsent ends the run with a [FatalError] once nothing has listened at the
// provider's address for absentPatience. It returns after the first success, since the
// address was right then, or when ctx ends.
func (ps *pauses) giveUpAbsent(ctx context.Context) {
	tick := time.NewTicker(absentCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		stats := ps.executor.Pool.Stats()
		if stats.Successes > 0 {
			return
		}
		if p := stats.Pause; !p.Absent.IsZero() && time.Since(p.Absent) >= absentPatience {
			err := fmt.Errorf("fatal provider error: %w; gave up after %v", p.Err, absentPatience)
			ps.ending.stop(&FatalError{Err: err})
			return
		}
	}
}

// refusedRhythm decides when a provider that refuses every call is worth a line of the
// log.
type refusedRhythm struct {
	since  time.Time // when the refusals began that were warned about; zero without any
	warned time.Time // when the last warning was
}

// due decides at now, from since when every call was refused; since is zero if the last
// call was not. It reports whether to warn, or for how long a state lasted that was
// warned about and is over.
//
// For example, with refusals from 0:00 it warns at 1:00, 11:00 and 21:00. If a call
// succeeds at 15:00, it returns that 15 minutes are over. Refusals of half a minute have
// no line.
func (r *refusedRhythm) due(now, since time.Time) (warn bool, over time.Duration) {
	switch {
	case since.IsZero() && r.since.IsZero():
		return false, 0
	case since.IsZero():
		over = now.Sub(r.since)
		*r = refusedRhythm{}
		return false, over
	case now.Sub(since) < refusedFirst || now.Sub(r.warned) < refusedAgain:
		return false, 0
	}
	r.since, r.warned = since, now
	return true, 0
}

// remindRefused warns of a provider that refuses every call: after a minute, and then
// every ten minutes, until ctx ends.
func (ps *pauses) remindRefused(ctx context.Context) {
	tick := time.NewTicker(refusedLook)
	defer tick.Stop()
	var rhythm refusedRhythm
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		since, calls := ps.activity.RefusedSince()
		r := ps.Status()
		if r.Pool.Waiting == 0 && r.Pool.InFlight == 0 || r.Pool.Paused != "" {
			since = time.Time{} // nobody waits for an answer, or the pause has lines of its own
		}
		warn, over := rhythm.due(r.Time, since)
		switch {
		case warn:
			attrs := []any{slog.Time("since", since.UTC()), slog.Int("calls_refused", calls)}
			if f := r.LastRefusal; f != nil {
				attrs = append(attrs, slog.String("provider", f.Provider),
					slog.Int("status_code", f.StatusCode), slog.String("error", f.Error))
			}
			ps.Log.Warn("the provider refuses every call; rows wait, none fails of it",
				append(attrs, slog.String("do", hold.Find(hold.Starved).Do))...)
		case over > 0:
			ps.Log.Info("the provider accepts calls again, or nobody waits for it",
				lastedAttr(over))
		}
	}
}
