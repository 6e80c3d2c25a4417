package stage

import (
	"time"

	"github.com/llm-stage/stage/internal/status"
	"github.com/llm-stage/stage/internal/version"
)

// Status reports the stage as it is now. Safe for concurrent use.
func (s *Stage) Status() status.Report {
	ready, reason := s.ready()
	return s.report(s.snapshot(), time.Now(), ready, reason)
}

func (s *Stage) report(snap status.Snapshot, now time.Time, ready bool, reason string) status.Report {
	r := status.Report{
		Stage: s.Cfg.Name, RunID: s.runID, Version: version.Current().Version, Time: now.UTC(), UptimeS: now.Sub(s.started).Seconds(),
		Ready: ready, Reason: reason, Pool: status.NewPoolReport(&snap, now), Usage: status.NewUsageReport(s.Usage.All()),
		Models: []status.ModelReport{}, Partitions: []status.PartitionReport{}, Payloads: s.activity.Payloads,
	}
	r.Pool.Throttle = s.Cfg.Pool.Throttle
	if r.Pool.Paused != "" {
		r.Pool.Held = s.holdText()
	}
	for _, m := range s.Usage.List() {
		r.Models = append(r.Models, status.ModelReport{Provider: m.Provider, Model: m.Model, UsageReport: status.NewUsageReport(m.Spending)})
	}
	for i := range snap.Partitions {
		r.AddPartition(&snap.Partitions[i], now)
	}
	s.activity.Report(&r, now)
	r.Sample, r.Rows.PerSecond = s.history.Last()
	r.Judge(s.activity.StarvedSince(now))
	if left := float64(r.Rows.Pending) + float64(r.Rows.Open); r.State == status.StateWorking && left > 0 && r.Rows.PerSecond > 0 {
		eta := left / r.Rows.PerSecond
		r.Rows.ETAS = &eta
	}
	return r
}
