package stage

import (
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// Summary returns what the stage has done so far: rows, retries, delays, tokens and cost. Safe for concurrent use.
func (s *Stage) Summary() *auditlog.Summary {
	stats := s.executor.Pool.Stats()
	sum := &auditlog.Summary{
		CapacityRetries: stats.CapacityRetries, PeakDelay: stats.PeakDelay,
		Throttled: stats.ThrottleTime, Executing: stats.ExecTime,
		Usage: s.Usage.ByModel(), Total: s.Usage.Totals(),
	}
	for _, c := range s.consumers {
		st := c.Status()
		sum.RowsSucceeded += st.Emitted - st.Failed
		sum.RowsFailed += st.Failed
		sum.RowsSkipped += st.Skipped
	}
	return sum
}

// recordRun records an event of the run as a whole. The start lists the settings, the end has the summary.
func (s *Stage) recordRun(phase auditlog.Phase, reason string, summary *auditlog.Summary) {
	e := &auditlog.Run{
		Header: auditlog.Header{Time: time.Now(), RunID: s.runID, Stage: s.Cfg.Name, Partition: auditlog.All},
		Phase:  phase, Reason: reason, Summary: summary,
	}
	if phase == auditlog.PhaseStart {
		e.Settings = s.Cfg.Settings()
	}
	s.recorder.RecordRun(e)
}
