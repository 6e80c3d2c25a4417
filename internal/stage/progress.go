package stage

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/ops/status"
)

// progressEvery is the time between two log lines of the progress.
const progressEvery = 30 * time.Second

// LogProgress logs the progress every 30 s while there is work, until ctx ends. left
// returns how many rows have no result yet, or a number below 0 if it does not know. With
// a nil left, these are the rows that the stage knows of.
func (v *view) LogProgress(ctx context.Context, left func() int64) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	last := v.progressMark()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r, now := v.Status(), v.progressMark()
		if now.rows == last.rows && now.calls == last.calls && r.Pool.InFlight == 0 &&
			r.Pool.Waiting == 0 {
			last = now
			continue // the stage is idle
		}

		attrs := v.progressAttrs(&r, now.rowsPerSecond(last), left)
		switch {
		case r.Stop != nil:
			v.Log.LogAttrs(ctx, slog.LevelInfo, "stopping", attrs...)
		case r.State == status.StateStarved, r.State == status.StateWaiting,
			r.State == status.StateHeld:
			v.Log.LogAttrs(ctx, slog.LevelInfo, "waiting",
				append(attrs, slog.String("state", string(r.State)), slog.String("why", r.Why))...)
		default:
			v.Log.LogAttrs(ctx, slog.LevelInfo, "working", attrs...)
		}
		last = now
	}
}

// progressMark is how much was done at an instant. The difference of two marks is the
// progress in between.
type progressMark struct {
	at          time.Time
	rows, calls uint64
}

// progressMark returns how much is done now.
func (v *view) progressMark() progressMark {
	m := progressMark{at: time.Now(), calls: v.Usage.All().Calls}
	for _, c := range v.consumers {
		m.rows += c.Status().Emitted
	}
	return m
}

// rowsPerSecond returns the rate at which rows were emitted since another mark. The time
// is at least 1 ms, so that two marks of one instant don't divide by zero.
func (m progressMark) rowsPerSecond(since progressMark) float64 {
	return float64(m.rows-since.rows) / max(m.at.Sub(since.at).Seconds(), 1e-3)
}

// progressAttrs returns the attributes of a progress line. Unknown numbers are left out.
// The text of the cost says how much of it is known.
func (v *view) progressAttrs(
	r *status.Report, rowsPerSecond float64, left func() int64,
) []slog.Attr {
	todo := rowsLeft(r, left)
	used := v.Usage.All()
	attrs := []slog.Attr{
		slog.Uint64("rows_succeeded", r.Rows.Succeeded), slog.Uint64("rows_failed", r.Rows.Failed),
	}
	if todo >= 0 {
		attrs = append(attrs, slog.Int64("rows_left", todo))
	}
	attrs = append(attrs,
		slog.Float64("rows_per_second", tenths(rowsPerSecond)),
		slog.Int("in_flight", r.Pool.InFlight), slog.Int("waiting", r.Pool.Waiting),
		slog.Float64("dispatch_delay_ms", tenths(r.Pool.DelayMS)),
		slog.Uint64("capacity_retries", r.Pool.CapacityRetries),
		slog.Uint64("calls", used.Calls),
	)
	if used.Usage != nil {
		attrs = append(attrs, slog.Int64("tokens", used.Usage.TotalTokens))
	}
	attrs = append(attrs, slog.String("cost_usd", used.Cost()))
	if holds := r.Holds.Text(); holds != "" {
		attrs = append(attrs, slog.String("holds", holds))
	}
	switch {
	case r.Pool.Paused != "":
		attrs = append(attrs, slog.String("paused", r.Pool.Paused),
			slog.String("pause_reason", string(r.Pool.PauseReason)),
			slog.Time("paused_since", *r.Pool.PausedSince))
		if next := r.Pool.NextProbe; next != nil { // it is nil if an operator has paused the stage
			attrs = append(attrs, slog.Time("next_probe", *next))
		}
		attrs = append(attrs, slog.Int("probes", r.Pool.Probes))
	case todo > 0 && rowsPerSecond > 0 && r.State == status.StateWorking:
		attrs = append(attrs, slog.Float64("eta_seconds", math.Ceil(float64(todo)/rowsPerSecond)))
	}
	return attrs
}

// rowsLeft returns how many rows have no result yet, from left or, if left does not know,
// from the partitions. A number below 0 means that nobody knows: only the owner of a
// partition knows how many rows wait in it, and a replica that owns none must not say 0.
func rowsLeft(r *status.Report, left func() int64) int64 {
	if left != nil {
		if todo := left(); todo >= 0 {
			return todo
		}
	}
	todo, owned := int64(r.Rows.Pending), false
	for _, p := range r.Partitions {
		todo += int64(p.Open())
		owned = owned || consumer.Role(p.Role) == consumer.Owner
	}
	if !owned {
		return -1
	}
	return todo
}

// tenths rounds to one decimal place.
func tenths(x float64) float64 { return math.Round(10*x) / 10 }
