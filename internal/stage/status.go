package stage

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/version"
)

// Status reports the stage as it is now. Safe for concurrent use.
func (s *Stage) Status() status.Report {
	return s.report(s.snapshot(), time.Now())
}

// ShowEnded has the status say why the stage has ended, where its process goes on. Run
// must have returned. Safe for concurrent use.
func (s *Stage) ShowEnded(why string) { s.ending.why.Store(&why) }

// summary is what other replicas are told.
func (s *Stage) summary() replicas.Summary {
	r := s.Status()
	sum := replicas.Summarize(&r, s.Cfg.Streams.Partitions)
	for id, heard := range s.spread.Lost() {
		sum.Missing = append(sum.Missing, replicas.Missing{Replica: id, LastSeen: heard.UTC()})
	}
	slices.SortFunc(sum.Missing, func(a, b replicas.Missing) int { return strings.Compare(a.Replica, b.Replica) })
	return sum
}

// callsOf returns the calls in flight of a row.
func (s *Stage) callsOf(row uint64) (calls []replicas.Call) {
	for _, o := range s.caller.InFlight() {
		if o.Sequence == row {
			calls = append(calls, replicas.Call{Item: o.Item, Attempt: o.Attempt, Provider: o.Provider, Model: o.Model, Since: o.Since.UTC()})
		}
	}
	return calls
}

// Whole returns the whole stage, as all its replicas report it; it asks the others, which
// takes [replicas.GatherFor].
func (s *Stage) Whole(ctx context.Context) replicas.Whole { return s.answerer.Look(ctx) }

// state returns the state in one word, and why if that is not a good one.
func (s *Stage) state() (state, why string) {
	r := s.Status()
	return string(r.State), r.Why
}

// report builds the status from a snapshot.
func (s *Stage) report(snap status.Snapshot, now time.Time) status.Report {
	ready, reason := snap.Ready(now)
	r := status.Report{
		Stage: s.Cfg.Name, RunID: s.runID, Version: version.Current().Version, Host: s.host, PID: os.Getpid(), Time: now.UTC(), UptimeS: now.Sub(s.started).Seconds(),
		Ready: ready, Reason: reason, Ended: snap.Process.Ended, Pool: status.NewPoolReport(&snap.Pool, now), Usage: status.NewUsageReport(s.Usage.All()),
		Stop: snap.Process.Stop, Order: s.Cfg.Order.Mode, Control: s.Cfg.Control.Obey, Drained: snap.Process.Drained, Holds: snap.Holds.Shown(),
		Models: []status.ModelReport{}, Partitions: []status.PartitionReport{}, Payloads: s.activity.Payloads,
		Places: s.places(),
	}
	if r.Order == streams.OrderKey {
		r.OrderKey = s.Cfg.Order.Key.String()
	}
	r.Pool.Throttle = s.Cfg.Pool.Throttle
	if r.Pool.Paused != "" {
		r.Pool.Held = snap.Process.Rows
	}
	for _, m := range s.Usage.List() {
		r.Models = append(r.Models, status.ModelReport{Provider: m.Provider, Model: m.Model, UsageReport: status.NewUsageReport(m.Spending)})
	}
	for i := range snap.Partitions {
		r.AddPartition(&snap.Partitions[i], now)
		p := &snap.Partitions[i]
		r.Partitions[i].Vacant = snap.Process.Vacant[p.Partition] && p.Role == consumer.Standby && !p.Taking
	}
	r.AddWishes(snap.Process.Pauses, snap.Process.Drains)
	for _, b := range snap.Budgets {
		r.AddBudget(b)
	}
	r.AddLanes(snap.Lanes, now)
	if !snap.OldestCall.IsZero() {
		r.Latency.OldestInFlightS = new(max(now.Sub(snap.OldestCall), 0).Seconds())
	}
	s.activity.Report(&r, now)
	r.Sample, r.Rows.PerSecond = s.history.Last()
	r.Judge()
	if left := float64(r.Rows.Pending) + float64(r.Rows.Open); r.State == status.StateWorking && left > 0 && r.Rows.PerSecond > 0 {
		eta := left / r.Rows.PerSecond
		r.Rows.ETAS = &eta
	}
	return r
}

// places are the names that advice uses.
func (s *Stage) places() hold.Places {
	return hold.Places{
		Input: s.Cfg.Input.Stream, Result: s.Cfg.Result.Stream, Audit: s.Cfg.Audit.Stream,
		Journal: s.Cfg.Journal.Stream, DeadLetter: s.Cfg.Streams.DeadLetterSubject, Flags: s.opts.Flags,
	}
}

// Summary returns what the stage has done so far: rows, retries, delays, tokens and cost.
// Safe for concurrent use.
func (s *Stage) Summary() *auditlog.Summary {
	stats := s.executor.Pool.Stats()
	sum := &auditlog.Summary{
		CapacityRetries: stats.CapacityRetries + s.lanes.retries.Load(), PeakDelay: stats.PeakDelay,
		Throttled: stats.ThrottleTime, Executing: stats.ExecTime,
		Usage: s.Usage.ByModel(), Total: s.Usage.All().Totals,
	}
	for _, c := range s.consumers {
		st := c.Status()
		sum.RowsSucceeded += st.Emitted - st.Failed
		sum.RowsFailed += st.Failed
		sum.RowsSkipped += st.Skipped
	}
	return sum
}

// SlotsAdvice says what more slots of the pool would have brought to a run that took so
// long; empty means its numbers do not say. Calls in flight are bounded by the rows of
// the windows, too, unless a row is many calls.
func (s *Stage) SlotsAdvice(took time.Duration) string {
	const most = 10000 // the greatest STAGE_POOL_SIZE
	maxSize := most
	if !s.Cfg.FansOut() {
		maxSize = min(most, s.Cfg.Window.Rows*s.Cfg.Streams.Partitions)
	}
	stats := s.executor.Pool.Stats()
	return status.SlotsAdvice(&stats, maxSize, took)
}

// recordRun records an event of the run as a whole. The start lists the settings, the end
// has the summary.
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
