package stage

import (
	"context"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/terminal"
)

const (
	// refusedFirst is how long the provider may refuse every call before that is a
	// warning, and refusedAgain the time between two of them. Some refusals are how the
	// throttle finds the rate.
	refusedFirst = time.Minute
	refusedAgain = 10 * time.Minute
	refusedLook  = 5 * time.Second
)

// retryAfter is the wait that a provider asked for as reports have it, or nil.
func retryAfter(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	return new(terminal.Milliseconds(d))
}

// refusedRhythm decides when a provider that refuses every call is worth a line of the log.
type refusedRhythm struct {
	since, warned time.Time // of the refusals that were warned about, or zero
}

// due takes since when every call was refused, zero: the last one was not, and reports
// whether to warn now, or that what was warned about is over after so long.
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
// each ten minutes, until ctx ends.
func (s *Stage) remindRefused(ctx context.Context) {
	tick := time.NewTicker(refusedLook)
	defer tick.Stop()
	var rhythm refusedRhythm
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		since, calls := s.activity.RefusedSince()
		r := s.Status()
		if r.Pool.Waiting == 0 && r.Pool.InFlight == 0 || r.Pool.Paused != "" {
			since = time.Time{} // nobody waits for an answer, or the pause has lines of its own
		}
		warn, over := rhythm.due(r.Time, since)
		switch {
		case warn:
			attrs := []any{slog.Time("since", since.UTC()), slog.Int("calls_refused", calls)}
			if f := r.LastRefusal; f != nil {
				attrs = append(attrs, slog.String("provider", f.Provider), slog.Int("status_code", f.StatusCode), slog.String("error", f.Error))
			}
			s.Log.Warn("the provider refuses every call; rows wait, none fails of it", append(attrs, slog.String("do", hold.Find(hold.Starved).Do))...)
		case over > 0:
			s.Log.Info("the provider accepts calls again, or nobody waits for it", lastedAttr(over))
		}
	}
}
