// Package status says what a stage is doing now: its state in one word, its activity,
// samples, and the report as JSON and text.
//
// A [Snapshot] has what the parts of a stage know, and holds.go collects from it why rows
// wait. The [Report] and the state that it judges are in this file, its text is in text.go.
// activity.go keeps recent calls and errors, history.go and sample.go the samples of the
// whole run. stall.go and late.go notice what no part reports: a partition in which nothing
// moves, and a row that takes too long. pause.go, stop.go, lane.go, budget.go and slots.go
// describe what they are named after.
package status

import (
	"strings"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/pool"
)

// State is the state of a stage, in one word.
type State string

// The states. [Report.Judge] chooses among those that apply.
const (
	StateStopping State = "stopping" // no row is taken or started; calls in flight are finished
	StatePaused   State = "paused"   // only probes are sent
	StateEnded    State = "ended"    // the process is about to end, or goes on without this stage
	StateHeld     State = "held"     // blocked by NATS, a stream or the audit
	// StateWaiting says that the provider asked to wait, or that answered rows wait for one
	// row.
	StateWaiting State = "waiting"
	StateStarved State = "starved" // the provider refuses every call
	// StateDrained says that it has handed over its partitions, because an operator asked
	// for it.
	StateDrained  State = "drained"
	StateStandby  State = "standby"  // another replica owns all partitions
	StateStarting State = "starting" // no partition is owned yet
	StateWorking  State = "working"  // rows are open or calls in flight
	StateIdle     State = "idle"     // nothing to do, or no row has come yet
)

// States are all states.
var States = []State{
	StateStopping, StatePaused, StateEnded, StateHeld, StateWaiting, StateStarved, StateDrained, StateStandby, StateStarting, StateWorking, StateIdle,
}

// Snapshot is the state of a stage at one instant, for gauges and reports.
type Snapshot struct {
	Pool       pool.Stats
	Partitions []consumer.Status
	Budgets    []Budget  // of the providers, the first one first; nil without STAGE_BUDGET
	Lanes      []Lane    // of the partitions; nil without a batch lane
	OldestCall time.Time // since when the oldest call in flight is; zero means that none is
	Process    Process
	Holds      hold.List // why rows wait, as [Snapshot.Collect] has found
}

// Report is the JSON of /api/status, which the dashboard shows. Names end with the unit
// of durations. It is also what the progress lines are made of.
type Report struct {
	Stage   string    `json:"stage"`
	RunID   string    `json:"run_id"`
	Version string    `json:"version"`
	Host    string    `json:"host"` // name of the machine or pod, with the process id below
	PID     int       `json:"pid"`
	Time    time.Time `json:"time"`
	UptimeS float64   `json:"uptime_seconds"`
	State   State     `json:"state"`
	// Why is the reason of the state. It is empty where the state needs none, such as
	// working or idle.
	Why   string     `json:"why"`
	Since *time.Time `json:"since"`
	Do    string     `json:"do"` // what to do first, or empty when working or idle
	// Row is the row that answered rows wait for, and Behind how many do. Both are null if
	// none does.
	Row    *uint64 `json:"row"`
	Behind *int    `json:"behind"`
	Ready  bool    `json:"ready"`
	Reason string  `json:"reason"`
	// Ended is why it has ended, in a process that goes on.
	Ended string `json:"ended,omitempty"`
	// Control says whether stage pause, resume, probe and drain are obeyed.
	Control bool `json:"control"`
	// Drained is who asked it to hand over its partitions, or empty.
	Drained string        `json:"drained,omitempty"`
	Order   streams.Order `json:"order"`
	// OrderKey is where a row's key is, or empty if results are not in order by key.
	OrderKey string         `json:"order_key"`
	Stop     *StopReport    `json:"stop"` // null unless it stops
	Rows     rowsReport     `json:"rows"`
	Pool     PoolReport     `json:"pool"`
	Budget   []BudgetReport `json:"budget"` // of each provider; null without STAGE_BUDGET
	Lane     *LaneReport    `json:"lane"`   // null without a batch lane
	Latency  LatencyReport  `json:"latency"`
	// Pace is what it was worth to make calls side by side, since the start.
	auditlog.Pace
	// LastRefusal is what a provider said when it last refused a call. It is null if none
	// was refused since the start.
	LastRefusal *RefusalReport    `json:"last_refusal"`
	Usage       UsageReport       `json:"usage"`
	Models      []ModelReport     `json:"models"`
	Partitions  []PartitionReport `json:"partitions"`
	RowErrors   []rowErrorReport  `json:"row_errors"`
	CallErrors  []callErrorReport `json:"call_errors"`
	Events      []Notice          `json:"events"` // newest first, like the calls
	Calls       []recentCall      `json:"calls"`
	Payloads    bool              `json:"payloads"` // whether calls show payloads
	Sample      *Sample           `json:"sample"`   // the last second

	// Holds are why rows wait. State, why, do, ready and reason follow from them.
	Holds hold.List `json:"holds"`

	// Places are the names that advice uses.
	Places hold.Places `json:"-"`
}

// rowsReport counts rows, over all partitions.
type rowsReport struct {
	Succeeded uint64  `json:"succeeded"`
	Failed    uint64  `json:"failed"`
	Skipped   uint64  `json:"skipped"`
	Pending   uint64  `json:"pending"`
	Open      int     `json:"open"`       // taken and not yet emitted
	PerSecond float64 `json:"per_second"` // emitted, over the last half minute
	// ETAS is null unless the state is working and rows were emitted recently.
	ETAS *float64 `json:"eta_seconds"`
}

// PoolReport is the state of the pool and its throttle.
type PoolReport struct {
	Throttle        string `json:"throttle"`
	Size            int    `json:"size"`
	InFlight        int    `json:"in_flight"`
	MaxConcurrent   int    `json:"max_concurrent"`
	Waiting         int    `json:"waiting"`
	Dispatched      uint64 `json:"dispatched"`
	Successes       uint64 `json:"successes"`
	CapacityRetries uint64 `json:"capacity_retries"`
	// Allowed is how many calls the throttle allows, or null without a limit.
	Allowed *float64 `json:"allowed_per_second"`
	// Concurrency is the limit on calls in flight that the throttle has learned, or null if
	// it knows none.
	Concurrency *int `json:"concurrency"`
	// Belief is what the throttle believes about the first provider, or null if it measures
	// nothing.
	Belief      *BeliefReport `json:"belief"`
	DelayMS     float64       `json:"dispatch_delay_ms"`
	PeakDelayMS float64       `json:"peak_delay_ms"`
	ThrottledS  float64       `json:"throttled_seconds"`
	ExecutingS  float64       `json:"executing_seconds"`
	// Paused is the last error of a pause, or empty without one.
	Paused      string     `json:"paused"`
	PauseReason hold.Kind  `json:"pause_reason"` // empty means not paused
	Advice      string     `json:"advice"`       // what to do first about a pause
	PausedSince *time.Time `json:"paused_since"`
	// NextProbe is when a pause is probed next. One in the past is due. It is null if there
	// is none.
	NextProbe *time.Time `json:"next_probe"`
	Probes    int        `json:"probes"`
	// Held is what becomes of the rows that a pause holds.
	Held           string           `json:"held"`
	LawPausedUntil *time.Time       `json:"law_paused_until"` // the provider asked to wait
	LawPauseReason aimd.PauseReason `json:"law_pause_reason"`
}

// LatencyReport has the percentiles of the latency of calls that succeeded within the
// last minute, in milliseconds and, as P50 and P90, in seconds. They are null if no call
// succeeded. The oldest call in flight has no latency yet: its age is in seconds, and
// null if none is in flight.
type LatencyReport struct {
	Calls           int      `json:"calls"`
	P50MS           *float64 `json:"p50_ms"`
	P90MS           *float64 `json:"p90_ms"`
	P99MS           *float64 `json:"p99_ms"`
	P50             *float64 `json:"p50"`
	P90             *float64 `json:"p90"`
	OldestInFlightS *float64 `json:"oldest_in_flight_s"`
}

// RefusalReport is what a provider said when it refused a call, whatever the row was: it
// had no capacity, or accepts no call with this key.
type RefusalReport struct {
	Time         time.Time `json:"time"`
	Provider     string    `json:"provider"`
	Model        string    `json:"model"`
	StatusCode   int       `json:"status_code"`
	Error        string    `json:"error"` // shortened, without secrets and text of rows
	RetryAfterMS *float64  `json:"retry_after_ms"`
}

// UsageReport sums up calls, tokens and cost. Tokens are null while no usage is reported.
// The cost is null while part of it is unknown. KnownCostUSD is the known part, and
// UnpricedCalls the number of calls without a cost.
type UsageReport struct {
	Calls            uint64   `json:"calls"`
	PromptTokens     *int64   `json:"prompt_tokens"`
	CompletionTokens *int64   `json:"completion_tokens"`
	TotalTokens      *int64   `json:"total_tokens"`
	CostUSD          *float64 `json:"cost_usd"`
	KnownCostUSD     float64  `json:"known_cost_usd"`
	UnpricedCalls    uint64   `json:"unpriced_calls"`
}

// ModelReport is the usage of one model of a provider.
type ModelReport struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	UsageReport
}

// PartitionReport is the state of one partition, as this process sees it.
type PartitionReport struct {
	Partition int    `json:"partition"`
	Role      string `json:"role"`
	Owner     string `json:"owner"`
	// Claim is the place of the owner's claim in the results stream. Of two replicas that
	// say they own the partition, the one with the later claim does.
	Claim uint64 `json:"claim_sequence"`
	// Paused is who asked that no row of it begins, or empty.
	Paused      string     `json:"paused"`
	PausedSince *time.Time `json:"paused_since"`
	// Drained is who asked that another replica serve it, or empty.
	Drained      string     `json:"drained"`
	Vacant       bool       `json:"vacant"` // nobody owns it, and no row waits for an owner
	WindowRows   int        `json:"window_rows"`
	ReorderRows  int        `json:"reorder_rows"`
	ReorderBytes int64      `json:"reorder_bytes"`
	HeadSequence uint64     `json:"head_sequence"`
	HeadSince    *time.Time `json:"head_since"`
	HeadOfLineS  float64    `json:"head_of_line_seconds"`
	PendingRows  uint64     `json:"pending_rows"`
	// HighWaterMark is the low-water mark where results are not in stream order.
	HighWaterMark uint64 `json:"high_water_mark"`
	AheadRows     int    `json:"ahead_rows"` // emitted above it
	// SetAsideRows are taken and not in the window, since their key has its share of it.
	SetAsideRows int `json:"set_aside_rows"`
	// KeysWaiting counts the keys of which answered rows wait for an earlier one.
	KeysWaiting int `json:"keys_waiting"`
	// WaitedFor is the row that others of its key have waited for longest, or 0.
	WaitedFor uint64 `json:"waited_for_sequence"`
	// WaitedForKey is its key, or null if there is none or it may not be shown.
	WaitedForKey   *string    `json:"waited_for_key"`
	WaitedForSince *time.Time `json:"waited_for_since"`
	KeyWaitS       float64    `json:"key_wait_seconds"`
	// ParkedRows are in the batch lane, or answered behind a row that is.
	ParkedRows     int    `json:"parked_rows"`
	Emitted        uint64 `json:"emitted"`
	Failed         uint64 `json:"failed"`
	Problem        string `json:"problem"`
	JournalProblem string `json:"journal_problem"`
	// DropProblem is why results that are older than STAGE_RESULT_MAX_AGE stay.
	DropProblem string `json:"drop_problem"`
}

// rowErrorReport counts the rows that failed for a reason, and describes the last of them.
type rowErrorReport struct {
	Reason   string `json:"reason"`
	Rows     uint64 `json:"rows"`
	Sequence uint64 `json:"sequence"`
	Error    string `json:"error"` // without text of the row, or empty if it is unknown
}

// callErrorReport counts the calls that failed in one way. The status code is 0 if there
// was no reply.
type callErrorReport struct {
	Provider   string `json:"provider"`
	Model      string `json:"model"`
	Class      string `json:"class"`
	StatusCode int    `json:"status_code"`
	Calls      uint64 `json:"calls"`
}

// BeliefReport is what the throttle believes about a provider. Null means that it does
// not know.
type BeliefReport struct {
	Text     string     `json:"text"` // all of it, in words
	Limit    *float64   `json:"limit_per_second"`
	Low      *float64   `json:"low_per_second"`  // surely admitted when the limit was last met
	High     *float64   `json:"high_per_second"` // refused then
	Met      *time.Time `json:"met"`
	InFlight *int       `json:"in_flight"` // the most calls at once that are accepted
	// Random is the share of calls that are refused whatever the rate is, from 0 to 1.
	Random *float64 `json:"random_share"`
	Shared bool     `json:"shared"` // the limit is of all processes that share the budget
}

// newBeliefReport returns the report of a belief, or nil if the throttle measures nothing.
func newBeliefReport(b *aimd.Belief, now time.Time) *BeliefReport {
	if !b.Measured {
		return nil
	}
	r := &BeliefReport{
		Text: b.Text(now), Limit: unlessZero(b.Limit), Low: unlessZero(b.Low), High: unlessZero(b.High),
		InFlight: unlessZero(b.InFlight), Random: unlessZero(b.Random), Shared: b.Shared,
	}
	if !b.Met.IsZero() {
		r.Met = instant(b.Met)
	}
	return r
}

// unlessZero returns a pointer to v, or nil if v is 0.
func unlessZero[T int | float64](v T) *T {
	if v == 0 {
		return nil
	}
	return &v
}

// NewPoolReport returns the report of a pool.
func NewPoolReport(p *pool.Stats, now time.Time) PoolReport {
	r := PoolReport{
		Size: p.PoolSize, InFlight: p.InFlight, MaxConcurrent: p.MaxConcurrent, Waiting: p.Waiting,
		Dispatched: p.Dispatched, Successes: p.Successes, CapacityRetries: p.CapacityRetries,
		DelayMS: terminal.Milliseconds(p.CurrentDelay), PeakDelayMS: terminal.Milliseconds(p.PeakDelay),
		ThrottledS: p.ThrottleTime.Seconds(), ExecutingS: p.ExecTime.Seconds(),
	}
	if p.CurrentDelay > 0 {
		allowed := 1 / p.CurrentDelay.Seconds()
		r.Allowed = &allowed
	}
	if p.LawConcurrency > 0 {
		r.Concurrency = &p.LawConcurrency
	}
	r.Belief = newBeliefReport(&p.LawBelief, now)
	if h, paused := OfPause(p.Pause); paused {
		r.PauseReason, r.Advice = h.Kind, hold.Find(h.Kind).Do
		r.Paused, r.PausedSince = h.Why, instant(h.Since)
		r.Probes = p.Pause.Probes
		if !h.Next.IsZero() {
			r.NextProbe = instant(h.Next)
		}
	}
	if p.LawPausedUntil.After(now) {
		r.LawPausedUntil, r.LawPauseReason = instant(p.LawPausedUntil), p.LawPauseReason
	}
	return r
}

// NextProbeText describes when the next probe of a pause is, as [NextProbe] does.
func (p *PoolReport) NextProbeText(now time.Time) string {
	if p.NextProbe == nil {
		return NextProbe(time.Time{}, now)
	}
	return NextProbe(*p.NextProbe, now)
}

// AddPartition adds a partition and its rows. Order, OrderKey and Payloads are set before.
func (r *Report) AddPartition(p *consumer.Status, now time.Time) {
	v := PartitionReport{
		Partition: p.Partition, Role: string(p.Role), Owner: p.Owner, Claim: p.Claim, WindowRows: p.Window, ReorderRows: p.Buffered,
		ReorderBytes: p.BufferedBytes, HeadSequence: p.Head, PendingRows: p.Pending,
		HighWaterMark: p.HighWaterMark, AheadRows: p.Ahead, SetAsideRows: p.SetAside, ParkedRows: p.Parked, KeysWaiting: p.KeysWaiting, WaitedFor: p.WaitedFor,
		Emitted: p.Emitted, Failed: p.Failed, Problem: p.Problem, JournalProblem: p.JournalProblem, DropProblem: p.DropProblem,
	}
	if p.Head != 0 {
		v.HeadSince, v.HeadOfLineS = instant(p.HeadSince), now.Sub(p.HeadSince).Seconds()
	}
	if p.WaitedFor != 0 && !p.WaitedForSince.IsZero() {
		v.WaitedForSince, v.KeyWaitS = instant(p.WaitedForSince), now.Sub(p.WaitedForSince).Seconds()
		if r.showsKeys() {
			v.WaitedForKey = &p.WaitedForKey
		}
	}
	r.Partitions = append(r.Partitions, v)
	r.Rows.Succeeded += p.Emitted - p.Failed
	r.Rows.Failed += p.Failed
	r.Rows.Skipped += p.Skipped
	r.Rows.Pending += p.Pending
	r.Rows.Open += v.Open()
}

// AddWishes notes what operators have asked for partitions.
func (r *Report) AddWishes(pauses, drains []Wish) {
	for _, w := range pauses {
		if p := r.partition(w.Partition); p != nil {
			p.Paused, p.PausedSince = w.Text, instant(w.Since)
		}
	}
	for _, w := range drains {
		if p := r.partition(w.Partition); p != nil {
			p.Drained = w.Text
		}
	}
}

// partition returns the report of a partition, or nil.
func (r *Report) partition(number int) *PartitionReport {
	for i := range r.Partitions {
		if p := &r.Partitions[i]; p.Partition == number {
			return p
		}
	}
	return nil
}

// Open counts the rows that were taken and are not emitted.
func (p *PartitionReport) Open() int { return p.WindowRows + p.SetAsideRows + p.ParkedRows }

// showsKeys reports whether keys may be shown. A key that is a member of the row is a part
// of the row's contents.
func (r *Report) showsKeys() bool {
	return r.Order == streams.OrderKey && (r.Payloads || !strings.HasPrefix(r.OrderKey, "field."))
}

// Judge sets the state from the holds and, if that is not a good one, why and since when it
// holds and what to do about it. It must be called last.
func (r *Report) Judge() {
	late := r.lateRow()
	if late != nil {
		r.Holds = append(r.Holds, late.hold)
	}
	for i := range r.Holds {
		r.Holds[i].Advise(r.Places)
	}
	if r.judge(); late != nil && r.State == StateWaiting && r.Why == late.hold.Why {
		r.Row, r.Behind = &late.row, &late.behind
	}
}

func (r *Report) judge() {
	roles, vacant := make(map[consumer.Role]int), 0
	for i := range r.Partitions {
		roles[consumer.Role(r.Partitions[i].Role)]++
		if r.Partitions[i].Vacant {
			vacant++
		}
	}
	owned, ended := roles[consumer.Owner], roles[consumer.Stopped] == len(r.Partitions)
	first := func(match func(*hold.Hold) bool) *hold.Hold { return r.Holds.First(match) }
	of := func(kind hold.Kind) *hold.Hold {
		return first(func(h *hold.Hold) bool { return h.Kind == kind })
	}
	blocked := first(unready)
	switch {
	case r.Holds.Of(hold.Ended) != nil:
		r.set(StateEnded, r.Holds.Of(hold.Ended))
	case r.Holds.Of(hold.Stopping) != nil && !ended:
		r.set(StateStopping, r.Holds.Of(hold.Stopping))
	case r.Holds.Paused() != nil:
		r.set(StatePaused, r.Holds.Paused())
	case ended:
		r.set(StateEnded, nil)
	case owned == 0 && r.Holds.Of(hold.Drained) != nil && blocked == nil:
		r.set(StateDrained, r.Holds.Of(hold.Drained))
	case owned == 0 && roles[consumer.Standby] == len(r.Partitions) && blocked == nil && vacant < len(r.Partitions):
		r.set(StateStandby, nil)
		r.Why = "another replica owns the partitions, or no row has come yet"
	case blocked != nil && owned == 0 && blocked.Kind == hold.Starting && first(isBlocked) == nil:
		r.set(StateStarting, nil)
	case blocked != nil:
		r.set(StateHeld, blocked)
		r.Why = r.Reason
	case of(hold.RetryAfter) != nil:
		r.set(StateWaiting, of(hold.RetryAfter))
	case of(hold.Starved) != nil:
		r.set(StateStarved, of(hold.Starved))
	case of(hold.Order) != nil:
		r.set(StateWaiting, of(hold.Order))
	case r.Rows.Open > 0 || r.Pool.InFlight > 0 || r.Pool.Waiting > 0:
		r.State = StateWorking
	default:
		r.State = StateIdle
	}
}

// set sets a state with what the hold behind it says, if there is one.
func (r *Report) set(s State, h *hold.Hold) {
	r.State, r.Do = s, hold.Find(kindOf[s]).Do
	if h == nil {
		return
	}
	r.Why, r.Do = h.Why, h.Do
	if !h.Since.IsZero() {
		r.Since = instant(h.Since)
	}
}

// kindOf has the kinds of hold whose advice serves the states that follow from the roles of
// the partitions.
var kindOf = map[State]hold.Kind{StateEnded: hold.Ended, StateStandby: hold.Standby, StateStarting: hold.Starting}

func isBlocked(h *hold.Hold) bool { return h.Class() == hold.Blocked }

// lawPauseText describes why the throttle pauses.
func lawPauseText(reason aimd.PauseReason) string {
	switch reason {
	case aimd.PauseRetryAfter:
		return "the provider rejected calls repeatedly and asked to wait (Retry-After)"
	case aimd.PauseLimitReset:
		return "the provider reported that no requests remain until its limit resets"
	default:
		return "the provider asked to wait"
	}
}

// NewUsageReport returns the report of what was spent.
func NewUsageReport(s cost.Spending) UsageReport {
	r := UsageReport{Calls: s.Calls, KnownCostUSD: s.KnownUSD, UnpricedCalls: s.Unpriced}
	if u := s.Usage; u != nil {
		r.PromptTokens, r.CompletionTokens, r.TotalTokens, r.CostUSD = &u.PromptTokens, &u.CompletionTokens, &u.TotalTokens, u.CostUSD
	}
	return r
}

// instant returns a time in UTC, as in reports.
func instant(t time.Time) *time.Time {
	t = t.UTC()
	return &t
}
