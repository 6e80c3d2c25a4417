package app

import (
	"time"

	"github.com/llm-stage/stage/internal/version"
)

// status reports the stage as it is now. Safe for concurrent use.
func (s *stage) status() statusReport {
	ready, reason := s.ready()
	return s.report(s.snapshot(), time.Now(), ready, reason)
}

func (s *stage) report(snap Snapshot, now time.Time, ready bool, reason string) statusReport {
	r := statusReport{
		Stage: s.cfg.Name, RunID: s.runID, Version: version.Current().Version, Time: now.UTC(), UptimeS: now.Sub(s.started).Seconds(),
		Ready: ready, Reason: reason, Pool: newPoolReport(&snap, now), Usage: newUsageReport(s.usage.All()),
		Models: []modelReport{}, Partitions: []partitionReport{}, Payloads: s.activity.payloads,
	}
	r.Pool.Throttle = s.cfg.Pool.Throttle
	if r.Pool.Paused != "" {
		r.Pool.Held = s.holdText()
	}
	for _, m := range s.usage.List() {
		r.Models = append(r.Models, modelReport{Provider: m.Provider, Model: m.Model, usageReport: newUsageReport(m.Spending)})
	}
	for i := range snap.Partitions {
		r.addPartition(&snap.Partitions[i], now)
	}
	s.activity.report(&r, now)
	r.Sample, r.Rows.PerSecond = s.history.last()
	r.judge(s.activity.starvedSince(now))
	if left := float64(r.Rows.Pending) + float64(r.Rows.Open); r.State == stateWorking && left > 0 && r.Rows.PerSecond > 0 {
		eta := left / r.Rows.PerSecond
		r.Rows.ETAS = &eta
	}
	return r
}
