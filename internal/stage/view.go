package stage

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/pool"
)

// view has the parts of a stage, and shows their state: to pages, metrics and the log, to
// other replicas, and at the end of the run. Its methods only read. A part that needs
// others has a pointer to the view. Nothing replaces a part once [New] has returned, so
// the view is safe for concurrent use.
type view struct {
	Cfg   *config.Config
	Conn  *natsconn.Conn
	Log   *slog.Logger   // adds the run id to each line
	Usage *cost.Recorder // tokens and cost of the calls of this run

	runID   string
	started time.Time
	host    string // name of this machine
	flags   string // see [Options]

	consumers []*consumer.Consumer // by partition
	executor  *executor.Executor
	caller    *call.Caller
	recorder  *recorder.Recorder
	inspector *streams.Inspector // looks at the settings of the streams
	spread    *spread.Spread     // nil with one partition
	answerer  *replicas.Answerer // answers questions about this replica, and asks all of them

	lanes    batchLanes
	sharing  sharing
	steering steering // the orders of operators
	ending   ending
	watchdog watchdog
	activity *status.Activity
	history  *status.History
	lasting  holdMemory
}

// newView returns the view of a stage that has no parts yet.
func newView(cfg *config.Config, conn *natsconn.Conn) view {
	host, _ := os.Hostname() // it is only shown
	now := time.Now()
	return view{
		Cfg: cfg, Conn: conn, Usage: cost.NewRecorder(), runID: call.NewID()[:12], started: now,
		host:     host,
		activity: status.NewActivity(cfg.HTTP.DashboardPayloads), history: status.NewHistory(now),
	}
}

// Status reports the stage as it is now. Safe for concurrent use.
func (v *view) Status() status.Report {
	return v.report(v.snapshot(), time.Now())
}

// summary returns the part of the status that other replicas get.
func (v *view) summary() replicas.Summary {
	r := v.Status()
	sum := replicas.Summarize(&r, v.Cfg.Streams.Partitions)
	for id, heard := range v.spread.Lost() {
		sum.Missing = append(sum.Missing, replicas.Missing{Replica: id, LastSeen: heard.UTC()})
	}
	slices.SortFunc(sum.Missing,
		func(a, b replicas.Missing) int { return strings.Compare(a.Replica, b.Replica) })
	return sum
}

// callsOf returns the calls in flight of a row.
func (v *view) callsOf(row uint64) (calls []replicas.Call) {
	for _, o := range v.caller.InFlight() {
		if o.Sequence == row {
			calls = append(calls,
				replicas.Call{
					Item: o.Item, Attempt: o.Attempt, Provider: o.Provider,
					Model: o.Model, Since: o.Since.UTC(),
				})
		}
	}
	return calls
}

// Whole returns the state of the whole stage, as all its replicas report it. It asks the
// others, which takes [replicas.GatherFor].
func (v *view) Whole(ctx context.Context) replicas.Whole { return v.answerer.Look(ctx) }

// state returns the state in one word, and the reason if that is not a good one.
func (v *view) state() (state, why string) {
	r := v.Status()
	return string(r.State), r.Why
}

// report builds the status from a snapshot. It only collects: which state that is, and
// what comes first among several holds, is decided by package status.
func (v *view) report(snap status.Snapshot, now time.Time) status.Report {
	ready, reason := snap.Ready(now)
	r := status.Report{
		Stage: v.Cfg.Name, RunID: v.runID, Version: version.Current().Version, Host: v.host,
		PID: os.Getpid(), Time: now.UTC(), UptimeS: now.Sub(v.started).Seconds(),
		Ready: ready, Reason: reason, Ended: snap.Process.Ended,
		Pool: status.NewPoolReport(&snap.Pool, now), Usage: status.NewUsageReport(v.Usage.All()),
		Stop: snap.Process.Stop, Order: v.Cfg.Order.Mode, Control: v.Cfg.Control.Obey,
		Drained: snap.Process.Drained, Holds: snap.Holds.Shown(),
		Models: []status.ModelReport{}, Partitions: []status.PartitionReport{},
		Payloads: v.activity.Payloads,
		Places:   v.places(),
	}
	if r.Order == streams.OrderKey {
		r.OrderKey = v.Cfg.Order.Key.String()
	}

	r.Pool.Throttle = v.Cfg.Pool.Throttle
	if r.Pool.Paused != "" {
		r.Pool.Held = snap.Process.Rows
	}
	for _, m := range v.Usage.List() {
		r.Models = append(r.Models,
			status.ModelReport{
				Provider: m.Provider, Model: m.Model,
				UsageReport: status.NewUsageReport(m.Spending),
			})
	}
	for i := range snap.Partitions {
		r.AddPartition(&snap.Partitions[i], now)
		p := &snap.Partitions[i]
		r.Partitions[i].Vacant = snap.Process.Vacant[p.Partition] && p.Role == consumer.Standby &&
			!p.Taking
	}
	r.Pace = v.pace(&snap.Pool)
	r.AddWishes(snap.Process.Pauses, snap.Process.Drains)
	for _, b := range snap.Budgets {
		r.AddBudget(b)
	}
	r.AddLanes(snap.Lanes, now)
	if !snap.OldestCall.IsZero() {
		r.Latency.OldestInFlightS = new(max(now.Sub(snap.OldestCall), 0).Seconds())
	}

	v.activity.Report(&r, now)
	r.Sample, r.Rows.PerSecond = v.history.Last()
	r.Judge()
	if left := float64(r.Rows.Pending) + float64(r.Rows.Open); r.State == status.StateWorking &&
		left > 0 && r.Rows.PerSecond > 0 {
		eta := left / r.Rows.PerSecond
		r.Rows.ETAS = &eta
	}
	return r
}

// places returns the names of streams that advice uses.
func (v *view) places() hold.Places {
	return hold.Places{
		Input: v.Cfg.Input.Stream, Result: v.Cfg.Result.Stream, Audit: v.Cfg.Audit.Stream,
		Journal: v.Cfg.Journal.Stream, Bucket: streams.BucketStream(v.Cfg.Result.Bucket),
		DeadLetter: v.Cfg.Streams.DeadLetterSubject, Flags: v.flags,
	}
}

// WaitsFor returns what a stop that begins now would wait for. Safe for concurrent use.
func (v *view) WaitsFor() status.StopReport {
	now := time.Now()
	r := status.StopReport{
		Since: now.UTC(), By: now.UTC().Add(v.Cfg.Process.StopTimeout),
		Calls: v.executor.Pool.Stats().InFlight,
	}
	for _, c := range v.consumers {
		r.Results += c.Status().Buffered
	}
	return r
}

// Summary returns the numbers of this run so far: rows, retries, delays, tokens and cost.
// It is safe for concurrent use.
func (v *view) Summary() *auditlog.Summary {
	stats := v.executor.Pool.Stats()
	sum := &auditlog.Summary{
		CapacityRetries: stats.CapacityRetries + v.lanes.retries.Load(), PeakDelay: stats.PeakDelay,
		Throttled: stats.ThrottleTime, Executing: stats.ExecTime,
		Belief: stats.LawBelief.Text(time.Now()),
		Pace:   v.pace(&stats),
		Usage:  v.Usage.ByModel(), Total: v.Usage.All().Totals,
	}
	for _, c := range v.consumers {
		st := c.Status()
		sum.RowsSucceeded += st.Emitted - st.Failed
		sum.RowsFailed += st.Failed
		sum.RowsSkipped += st.Skipped
	}
	return sum
}

// RunID returns the name of this process in the events of the audit.
func (v *view) RunID() string { return v.runID }

// pace returns the gain of the pool since the stage has started.
func (v *view) pace(stats *pool.Stats) auditlog.Pace {
	return auditlog.NewPace(v.Usage.All().Took, time.Since(v.started), stats.ThrottleTime,
		v.Cfg.Pool.Size)
}

// SlotsAdvice returns what more slots of the pool would have brought to a run that took
// so long, or "" if its numbers do not show that. Calls in flight are bounded by the rows
// of the windows, too, unless a row is many calls: a window of 64 rows can't use 100
// slots.
func (v *view) SlotsAdvice(took time.Duration) string {
	const most = 10000 // the largest STAGE_POOL_SIZE
	maxSize := most
	if !v.Cfg.FansOut() {
		maxSize = min(most, v.Cfg.Window.Rows*v.Cfg.Streams.Partitions)
	}
	stats := v.executor.Pool.Stats()
	return status.SlotsAdvice(&stats, maxSize, took)
}

// holdMemory remembers since when each hold lasts, since a snapshot only shows what holds
// now. It is safe for concurrent use.
type holdMemory struct {
	mu     sync.Mutex
	memory hold.Memory
}

// fill sets in each hold since when it lasts.
func (m *holdMemory) fill(l hold.List, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.memory.Fill(l, now)
}

// snapshot returns the state that gauges and pages show, with all holds.
func (v *view) snapshot() status.Snapshot {
	now := time.Now()
	snap := v.look(v.consumers...)
	snap.Budgets, snap.Lanes = v.sharing.all(), v.lanes.status(v.Cfg.LLM.Provider)
	if calls := v.caller.InFlight(); len(calls) > 0 {
		snap.OldestCall = calls[0].Since
	}
	snap.Collect(now)
	v.lasting.fill(snap.Holds, now)
	return snap
}

// gauges returns the state that metrics show: the snapshot, and the hold on the row for
// which answered rows wait. Only the report finds that one.
func (v *view) gauges() status.Snapshot {
	snap := v.snapshot()
	r := v.report(snap, time.Now())
	if late := r.Holds.First(func(h *hold.Hold) bool { return h.Kind == hold.Order }); late != nil {
		snap.Holds = append(snap.Holds, *late)
	}
	return snap
}

// look returns the state of the pool, of the process and of these partitions.
func (v *view) look(consumers ...*consumer.Consumer) status.Snapshot {
	snap := status.Snapshot{Pool: v.executor.Pool.Stats(), Process: v.process(time.Now())}
	for _, c := range consumers {
		st := v.partition(c)
		if _, vacant := v.watchdog.of(st.Partition); vacant {
			snap.Process.Vacant[st.Partition] = true
		}
		snap.Partitions = append(snap.Partitions, st)
	}
	return snap
}

// process returns the reasons for which all rows of the process wait.
func (v *view) process(now time.Time) status.Process {
	p := status.Process{
		Ended: v.ending.endedBy(), Stop: v.ending.stopReport(),
		Down: v.Conn.Down(), Audit: v.recorder.Problem(),
		Drained: v.steering.drained(),
		Starved: v.activity.StarvedSince(now), Rows: rowsOfAPause(v.Cfg),
		Vacant: make(map[int]bool),
		Server: func(index int) string { return v.caller.At(index).Provider() },
		Media:  v.executor.MediaHold(),
	}
	if why := v.Conn.Full(); why != nil {
		p.Full = why.Error()
	}
	if err := v.inspector.Verdict(); err != nil {
		p.Streams = config.Explain(err)
	}
	p.Pauses, p.Drains = v.steering.wishes()
	return p
}

// ready reports whether the stage is connected, owning or standing by, and neither
// stopping nor paused. If it is not, reason says why.
func (v *view) ready() (ok bool, reason string) {
	snap := v.snapshot()
	return snap.Ready(time.Now())
}

// partition returns the status of a partition. If nothing else is known to block it, the
// finding of the watchdog is added.
func (v *view) partition(c *consumer.Consumer) consumer.Status {
	st := c.Status()
	if st.Problem != "" {
		return st
	}
	if st.Problem, _ = v.watchdog.of(st.Partition); st.Problem != "" {
		h := hold.OfPartition(st.Partition, hold.Stalled)
		h.Why = st.Problem
		st.Holds = append([]hold.Hold{h}, st.Holds...)
	}
	return st
}
