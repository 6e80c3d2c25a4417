package metrics

import (
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/version"
	"github.com/prometheus/client_golang/prometheus"
)

// reasonNATS is the reason of llm_stage_paused for a stage that NATS blocks: no
// connection, a stream that is full or missing, a missing permission. The pool is not
// paused: calls in flight end, and new ones wait for room in the window.
const reasonNATS = "nats"

// gauges collects a [status.Snapshot] as metrics. All values of a scrape come from one
// snapshot, and the work itself sets nothing.
type gauges struct {
	build    version.Build
	snapshot func() status.Snapshot

	throttled     *prometheus.Desc
	inFlight      *prometheus.Desc
	dispatchDelay *prometheus.Desc
	concurrency   *prometheus.Desc
	window        *prometheus.Desc
	bufferRows    *prometheus.Desc
	bufferBytes   *prometheus.Desc
	headOfLine    *prometheus.Desc
	ahead         *prometheus.Desc
	setAside      *prometheus.Desc
	keysWaiting   *prometheus.Desc
	keyWait       *prometheus.Desc
	pending       *prometheus.Desc
	active        *prometheus.Desc
	paused        *prometheus.Desc
	partition     *prometheus.Desc // that an operator has paused
	holds         *prometheus.Desc
	buildInfo     *prometheus.Desc

	budget, fallbackBudget budgetGauges
	lane                   laneGauges
}

// budgetGauges are what a process knows of a budget that it shares.
type budgetGauges struct{ members, share, rate, mode *prometheus.Desc }

// newBudgetGauges returns the gauges of a budget. labels are added to the ones that the
// gauges of the first provider's budget have.
func newBudgetGauges(desc func(name, help string, labels ...string) *prometheus.Desc, labels ...string) budgetGauges {
	return budgetGauges{
		members: desc("llm_stage_budget_members", "Processes that share the budget (STAGE_BUDGET), this one included. This and the other gauges of the budget have the label provider for fallbacks only.", labels...),
		share:   desc("llm_stage_budget_share", "Part of the shared budget that this process may use, of 1.", labels...),
		rate:    desc("llm_stage_budget_rate", "Calls per second that all processes of the shared budget may make; alone, this one.", labels...),
		mode:    desc("llm_stage_budget_mode", "1 for the present mode in the shared budget, else 0: leader, member or alone.", append([]string{"mode"}, labels...)...),
	}
}

// collect passes on the gauges of one budget.
func (d budgetGauges) collect(gauge func(d *prometheus.Desc, value float64, labels ...string), b *status.Budget, labels ...string) {
	gauge(d.members, float64(b.Members), labels...)
	gauge(d.share, b.Share, labels...)
	gauge(d.rate, b.Rate, labels...)
	for _, mode := range status.BudgetModes {
		gauge(d.mode, oneIf(b.Mode == mode), append([]string{string(mode)}, labels...)...)
	}
}

func newGauges(build version.Build, snapshot func() status.Snapshot) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gauges{
		build: build, snapshot: snapshot,
		throttled:     desc("llm_stage_throttled_seconds_total", "Time during which a row was ready and a slot free, but the throttle delayed the call."),
		inFlight:      desc("llm_stage_in_flight_calls", "Calls in flight."),
		dispatchDelay: desc("llm_stage_dispatch_delay_seconds", "Current delay between dispatches by the throttle."),
		concurrency:   desc("llm_stage_throttle_concurrency", "Calls in flight that the throttle has found the provider to make use of, where it lets more wait; 0: no such number is known."),
		window:        desc("llm_stage_window_rows", "Rows taken and not yet emitted.", "partition"),
		bufferRows:    desc("llm_stage_reorder_buffer_rows", "Finished rows that wait for an earlier one.", "partition"),
		bufferBytes:   desc("llm_stage_reorder_buffer_bytes", "Bytes of rows and results in the window.", "partition"),
		headOfLine:    desc("llm_stage_head_of_line_seconds", "Time for which the oldest row of the window has been the oldest; 0 when the window is empty.", "partition"),
		ahead:         desc("llm_stage_ahead_rows", "Rows emitted although an earlier row is not; 0 in stream order.", "partition"),
		setAside:      desc("llm_stage_set_aside_rows", "Rows taken that are not in the window, because their key has its share of it; 0 but in order by key.", "partition"),
		keysWaiting:   desc("llm_stage_keys_waiting", "Keys of which answered rows wait for an earlier row; 0 but in order by key.", "partition"),
		keyWait:       desc("llm_stage_key_wait_seconds", "Time since the row was taken that others of its key have waited for longest; 0 if none waits.", "partition"),
		pending:       desc("llm_stage_pending_rows", "Rows that wait in the input stream.", "partition"),
		active:        desc("llm_stage_active", "1 on the owner of the partition, else 0.", "partition"),
		paused:        desc("llm_stage_paused", "1 while the stage is paused for this reason, else 0.", "reason"),
		partition:     desc("llm_stage_partition_paused", "1 on the owner of a partition that an operator has paused (stage pause --partition), else 0.", "partition"),
		holds:         desc("llm_stage_holds", "Reasons why rows wait now, by kind: how many of the stage, its partitions, keys and providers each is about. docs/holds.md has the kinds.", "kind"),
		buildInfo:     desc("llm_stage_build_info", "Always 1; the labels are the versions of the program and of Go.", "version", "goversion"),

		budget: newBudgetGauges(desc), fallbackBudget: newBudgetGauges(desc, "provider"), lane: newLaneGauges(desc),
	}
}

// Describe implements [prometheus.Collector]. It leaves out the gauges of fallbacks'
// budgets: a registry refuses one name with two sets of labels.
func (g *gauges) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		g.throttled, g.inFlight, g.dispatchDelay, g.concurrency, g.window, g.bufferRows, g.bufferBytes, g.headOfLine,
		g.ahead, g.setAside, g.keysWaiting, g.keyWait, g.pending, g.active, g.paused, g.partition, g.holds, g.buildInfo,
		g.budget.members, g.budget.share, g.budget.rate, g.budget.mode,
		g.lane.batches, g.lane.rows, g.lane.paused, g.lane.oldest, g.lane.adopted, g.lane.lapsed,
	} {
		descs <- d
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := g.snapshot()
	metrics <- prometheus.MustNewConstMetric(g.throttled, prometheus.CounterValue, s.Pool.ThrottleTime.Seconds())
	gauge(g.inFlight, float64(s.Pool.InFlight))
	gauge(g.dispatchDelay, s.Pool.CurrentDelay.Seconds())
	gauge(g.concurrency, float64(s.Pool.LawConcurrency))
	for i := range s.Partitions {
		p := &s.Partitions[i]
		partition := strconv.Itoa(p.Partition)
		var head, keyWait time.Duration
		if p.Window > 0 {
			head = max(0, time.Since(p.HeadSince))
		}
		if p.WaitedFor != 0 && !p.WaitedForSince.IsZero() {
			keyWait = max(0, time.Since(p.WaitedForSince))
		}
		gauge(g.window, float64(p.Window), partition)
		gauge(g.bufferRows, float64(p.Buffered), partition)
		gauge(g.bufferBytes, float64(p.BufferedBytes), partition)
		gauge(g.headOfLine, head.Seconds(), partition)
		gauge(g.ahead, float64(p.Ahead), partition)
		gauge(g.setAside, float64(p.SetAside), partition)
		gauge(g.keysWaiting, float64(p.KeysWaiting), partition)
		gauge(g.keyWait, keyWait.Seconds(), partition)
		gauge(g.pending, float64(p.Pending), partition)
		gauge(g.active, oneIf(p.Role == consumer.Owner), partition)
		gauge(g.partition, oneIf(has(s.Holds, func(h *hold.Hold) bool {
			return h.Kind == hold.Operator && h.Scope == hold.Partition && h.Name == partition
		})), partition)
	}
	blocked := has(s.Holds, func(h *hold.Hold) bool { return h.Class() == hold.Blocked })
	gauge(g.paused, oneIf(blocked), reasonNATS)
	for _, reason := range status.PauseReasons {
		gauge(g.paused, oneIf(s.Holds.Of(reason) != nil), string(reason))
	}
	for kind, n := range s.Holds.Counts() {
		gauge(g.holds, float64(n), string(kind))
	}
	for i := range s.Budgets { // those of fallbacks alone have the label provider
		if b := &s.Budgets[i]; i == 0 {
			g.budget.collect(gauge, b)
		} else {
			g.fallbackBudget.collect(gauge, b, b.Provider)
		}
	}
	if len(s.Lanes) > 0 {
		g.lane.collect(metrics, s.Lanes)
	}
	gauge(g.buildInfo, 1, g.build.Version, g.build.GoVersion)
}

// has reports whether a hold in the list matches.
func has(l hold.List, match func(*hold.Hold) bool) bool { return l.First(match) != nil }

// oneIf returns the value of a gauge that is a flag: 1 for true and 0 for false.
func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
