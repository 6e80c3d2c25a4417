package replicas

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
)

// Status is whether a replica answers.
type Status string

// The values of Status.
const (
	Answers Status = "answers"
	// Missed says that it answered within the last minute. All else is what it said then.
	Missed     Status = "missing"
	Unreadable Status = "unreadable" // this program can't read its answer, see Note
)

// Whole is a stage as all its replicas report it, the JSON of /api/stage.
type Whole struct {
	Stage string       `json:"stage"`
	Time  time.Time    `json:"time"`
	State status.State `json:"state"` // the most telling one of the replicas
	// Why says how many replicas it is about, if not all.
	Why   string     `json:"why"`
	Since *time.Time `json:"since"` // as that replica says, or null
	Do    string     `json:"do"`    // what to do first, or empty
	// Row is the row that answered rows wait for, and Behind how many do. Both are null if
	// none does.
	Row    *uint64 `json:"row"`
	Behind *int    `json:"behind"`
	// Problem is why other replicas could not be asked, or empty if they were.
	Problem string `json:"problem"`
	// Control says that a replica obeys stage pause and the like.
	Control bool `json:"control"`
	Rows    Rows `json:"rows"`
	Pool    Pool `json:"pool"`
	// Pauses are ordered by how many replicas have them, the most first.
	Pauses        []Pauses `json:"pauses"`
	Latency       Latency  `json:"latency"` // the longest of each that a replica has
	auditlog.Pace          // see addPace
	// LastRefusal is the newest one, or null if no provider has refused a call.
	LastRefusal *status.RefusalReport `json:"last_refusal"`
	// Usage sums what the replicas that answer have used since each of them started.
	Usage status.UsageReport `json:"usage"`
	// Budget has one entry for each provider, with the share of the whole stage. It is null
	// without STAGE_BUDGET.
	Budget    []status.BudgetReport `json:"budget"`
	Lane      *Lane                 `json:"lane"` // null without a batch lane
	RowErrors []RowErrors           `json:"row_errors"`
	Replicas  []Replica             `json:"replicas"` // missing ones last
	// LeftOut counts the replicas beyond the most that are shown.
	LeftOut        int     `json:"left_out"`
	PartitionCount int     `json:"partition_count"`
	Partitions     []Owned `json:"partitions"` // each, by number
}

// Replica is one process of the stage.
type Replica struct {
	Status   Status    `json:"status"`
	Self     bool      `json:"self"` // the one that was asked
	LastSeen time.Time `json:"last_seen"`
	Note     string    `json:"note"` // why it can't be read, or who misses it
	Facts
	Partitions []int `json:"partitions"` // that it owns
	LeftOut    int   `json:"left_out"`   // partitions of which its answer had no room
}

// Owned is a partition, as its owner sees it.
type Owned struct {
	Partition
	Replica string   `json:"replica"` // or empty if nobody owns it
	Host    string   `json:"host"`
	Vacant  bool     `json:"vacant"` // nobody owns it, and it has no row: it is idle
	Rivals  []string `json:"rivals"` // replicas that say they own it, and have an older claim
}

// Pauses sums up the pauses for one reason.
type Pauses struct {
	Replicas int `json:"replicas"`
	Pause        // of the one whose next probe is first
	// Advice is what to do first.
	Advice string `json:"advice"`
}

// Merge puts answers together. The memory, which may be nil, learns which replicas have
// answered, and knows which ones no longer do.
func Merge(g Gathered, m *Memory, now time.Time) Whole {
	w := Whole{
		Stage: g.Stage, Time: now.UTC(), Problem: g.Problem, Pauses: []Pauses{}, RowErrors: []RowErrors{}, Replicas: []Replica{}, Partitions: []Owned{},
	}
	if m == nil {
		m = NewMemory()
	}
	summaries := g.read(&w, now)
	present := make(map[string]bool)
	for _, r := range w.Replicas {
		present[r.Replica] = true
	}
	w.addPartitions(summaries)
	for i := range w.Replicas {
		if w.Replicas[i].Status == Answers {
			m.note(w.Replicas[i])
		}
	}
	if g.Problem == "" {
		w.addMissing(summaries, present, m, now)
	}
	w.sum(summaries)
	// In any other state the rate of the last half minute says nothing about the time left.
	if w.judge(); w.State != status.StateWorking {
		w.Rows.ETAS = nil
	}
	slices.SortStableFunc(w.Replicas, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(order[a.Status], order[b.Status]), strings.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), strings.Compare(a.Replica, b.Replica))
	})
	return w
}

var order = map[Status]int{Answers: 0, Unreadable: 1, Missed: 2}

// read adds the replicas that have answered, each once, and returns the summaries that can
// be read.
func (g *Gathered) read(w *Whole, now time.Time) (summaries []Summary) {
	at := make(map[string]bool)
	add := func(s Summary, note string, self bool) {
		if s.Replica != "" && at[s.Replica] || s.Departing {
			return
		}
		at[s.Replica] = true
		if len(w.Replicas) >= Most {
			w.LeftOut++
			return
		}
		r := Replica{Status: Answers, Self: self, LastSeen: now.UTC(), Note: note, Facts: s.Facts, Partitions: []int{}, LeftOut: s.LeftOut}
		if note != "" {
			r.Status = Unreadable
		} else {
			summaries = append(summaries, s)
		}
		w.Replicas = append(w.Replicas, r)
	}
	if g.Own != nil {
		add(*g.Own, "", true)
	}
	for _, body := range g.answers {
		s, note := decode(g.Stage, body)
		add(s, note, false)
	}
	return summaries
}

// addPartitions finds the owner of each partition. While one moves two replicas may say
// that they own it: the newest claim counts, which is the last one in the results stream.
func (w *Whole) addPartitions(summaries []Summary) {
	for i := range summaries {
		w.PartitionCount = max(w.PartitionCount, min(summaries[i].PartitionCount, partitionsMax))
	}
	w.Partitions = make([]Owned, w.PartitionCount)
	for p := range w.Partitions {
		w.Partitions[p].Partition.Partition, w.Partitions[p].Rivals = p, []string{}
	}
	for i := range summaries {
		s := &summaries[i]
		for _, p := range s.Partitions {
			if p.Partition < 0 || p.Partition >= len(w.Partitions) {
				continue
			}
			o := &w.Partitions[p.Partition]
			owner := consumer.Role(p.Role) == consumer.Owner
			switch {
			case owner && (o.Replica == "" || p.Claim > o.Claim):
				if o.Replica != "" {
					o.Rivals = append(o.Rivals, o.Replica)
				}
				p.Problem = cmp.Or(p.Problem, o.Problem)
				o.Partition, o.Replica, o.Host = p, s.Replica, s.Host
			case owner:
				o.Rivals = append(o.Rivals, s.Replica)
			default: // not owned here: what keeps this replica from it is worth showing
				o.Problem = cmp.Or(o.Problem, p.Problem)
				if o.Role == "" {
					o.Role = p.Role
				}
			}
		}
	}
	for i := range summaries {
		for _, p := range summaries[i].Vacant {
			if p >= 0 && p < len(w.Partitions) && w.Partitions[p].Replica == "" && w.Partitions[p].Problem == "" {
				w.Partitions[p].Vacant = true
			}
		}
	}
	index := make(map[string]int)
	for i := range w.Replicas {
		index[w.Replicas[i].Replica] = i
	}
	for p := range w.Partitions {
		if o := &w.Partitions[p]; o.Replica != "" {
			r := &w.Replicas[index[o.Replica]]
			r.Partitions = append(r.Partitions, p)
		}
	}
}

// addMissing adds the replicas that fell silent: the ones that were seen here, and the ones
// that others miss.
func (w *Whole) addMissing(summaries []Summary, present map[string]bool, m *Memory, now time.Time) {
	left := make(map[string]bool)
	for i := range summaries {
		for _, id := range summaries[i].Departed {
			left[id] = true
			if !present[id] {
				m.depart(id, now)
			}
		}
	}
	for _, r := range m.missing(present, now) {
		r.Status, r.Self, r.Partitions, r.Note = Missed, false, []int{}, ""
		m.note(r)
		w.addMissed(r, present)
	}
	for i := range summaries {
		for _, lost := range summaries[i].Missing {
			if ago := now.Sub(lost.LastSeen); left[lost.Replica] || lost.Replica == "" || ago > MissingFor || ago < -MissingFor {
				continue
			}
			w.addMissed(Replica{
				Status: Missed, LastSeen: lost.LastSeen.UTC(), Facts: Facts{Replica: clip(lost.Replica)}, Partitions: []int{},
				Note: "missed by " + summaries[i].Replica,
			}, present)
		}
	}
}

func (w *Whole) addMissed(r Replica, present map[string]bool) {
	if present[r.Replica] {
		return
	}
	present[r.Replica] = true
	if len(w.Replicas) >= Most {
		w.LeftOut++
		return
	}
	w.Replicas = append(w.Replicas, r)
}

// sum adds up what the replicas that answer report. What waits in a partition is counted
// once, as its owner sees it.
func (w *Whole) sum(summaries []Summary) {
	errs, limited := make(map[string]uint64), len(summaries) > 0
	allowed := 0.0
	for i := range summaries {
		s := &summaries[i]
		w.Control = w.Control || s.Control
		w.Rows.Succeeded += s.Rows.Succeeded
		w.Rows.Failed += s.Rows.Failed
		w.Rows.Skipped += s.Rows.Skipped
		w.Rows.PerSecond += s.Rows.PerSecond
		w.Pool.Throttle = cmp.Or(w.Pool.Throttle, s.Pool.Throttle)
		w.Pool.Size += s.Pool.Size
		w.Pool.InFlight += s.Pool.InFlight
		w.Pool.Waiting += s.Pool.Waiting
		w.Pool.Dispatched += s.Pool.Dispatched
		w.Pool.Successes += s.Pool.Successes
		w.Pool.CapacityRetries += s.Pool.CapacityRetries
		if s.Pool.Allowed == nil {
			limited = false
		} else {
			allowed += *s.Pool.Allowed
		}
		w.Latency.P50, w.Latency.P90 = longer(w.Latency.P50, s.Latency.P50), longer(w.Latency.P90, s.Latency.P90)
		w.Latency.OldestInFlightS = longer(w.Latency.OldestInFlightS, s.Latency.OldestInFlightS)
		if f := s.LastRefusal; f != nil && (w.LastRefusal == nil || f.Time.After(w.LastRefusal.Time)) {
			w.LastRefusal = f
		}
		w.addPause(s.Pause)
		w.addBudget(s.Budget)
		w.addLane(s.Lane)
		for _, e := range s.RowErrors {
			errs[e.Reason] += e.Rows
		}
	}
	if limited {
		w.Pool.Allowed = &allowed
	}
	if len(summaries) > 0 && !slices.ContainsFunc(summaries, func(s Summary) bool { return s.Pool.Belief != summaries[0].Pool.Belief }) {
		w.Pool.Belief = summaries[0].Pool.Belief
	}
	for p := range w.Partitions {
		w.Rows.Pending += w.Partitions[p].PendingRows
		w.Rows.Open += w.Partitions[p].OpenRows
	}
	if left := float64(w.Rows.Pending) + float64(w.Rows.Open); left > 0 && w.Rows.PerSecond > 0 {
		eta := left / w.Rows.PerSecond
		w.Rows.ETAS = &eta
	}
	for _, reason := range slices.Sorted(maps.Keys(errs)) {
		w.RowErrors = append(w.RowErrors, RowErrors{reason, errs[reason]})
	}
	slices.SortStableFunc(w.RowErrors, func(a, b RowErrors) int { return cmp.Compare(b.Rows, a.Rows) })
	slices.SortStableFunc(w.Pauses, func(a, b Pauses) int { return cmp.Compare(b.Replicas, a.Replicas) })
	w.Usage = sumUsage(summaries)
	w.addPace(summaries)
}

// addPace puts together what parallel calls gained. The calls and the throttled time of all
// replicas add up, and the oldest replica says how much time has passed. For example,
// two replicas with 16 slots, of which one made calls of 800 s within 100 s and the other,
// which is new, calls of 160 s within 20 s: the speed-up is 960 / 100 = 9.6, and 960 of
// (100 + 20) × 16 seconds of the slots were in use, 50%.
func (w *Whole) addPace(summaries []Summary) {
	slots := 0.0 // slots times seconds
	for i := range summaries {
		s := &summaries[i]
		w.CallsS += s.CallsS
		w.ThrottledS += s.ThrottledS
		w.ElapsedS = max(w.ElapsedS, s.ElapsedS)
		slots += s.ElapsedS * float64(s.Pool.Size)
	}
	if w.ElapsedS > 0 && slots > 0 {
		w.Speedup, w.Utilisation = w.CallsS/w.ElapsedS, w.CallsS/slots
	}
}

// longer returns the larger of two values. A nil one is unknown.
func longer(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

func (w *Whole) addPause(p *Pause) {
	if p == nil {
		return
	}
	i := slices.IndexFunc(w.Pauses, func(o Pauses) bool { return o.Reason == p.Reason })
	if i < 0 {
		w.Pauses = append(w.Pauses, Pauses{1, *p, hold.Find(p.Reason).Do})
		return
	}
	all := &w.Pauses[i]
	all.Replicas++
	if p.NextProbe != nil && (all.NextProbe == nil || p.NextProbe.Before(*all.NextProbe)) {
		all.Pause = *p
	}
}

// addBudget adds the share of a replica. The facts about the whole budget are taken from
// the leader.
func (w *Whole) addBudget(budgets []status.BudgetReport) {
	for _, b := range budgets {
		i := slices.IndexFunc(w.Budget, func(o status.BudgetReport) bool { return o.Name == b.Name && o.Provider == b.Provider })
		if i < 0 {
			w.Budget = append(w.Budget, b)
			continue
		}
		all := &w.Budget[i]
		share := all.Share + b.Share
		if b.Mode == status.BudgetLeader || all.Mode == status.BudgetAlone {
			*all = b
		}
		all.Share = share
	}
}

func (w *Whole) addLane(l *Lane) {
	switch {
	case l == nil:
		return
	case w.Lane == nil:
		w.Lane = &Lane{Rows: make(map[status.LaneState]int), Paused: l.Paused}
	}
	all := w.Lane
	// A lane without batches may be the one of a replica that stands by.
	idle := l.Paused == "" && l.Partly == "" && l.Open == 0
	// If a lane works anywhere, what is paused is only a part.
	if all.Paused == "" || l.Paused == "" && !idle {
		all.Partly = cmp.Or(all.Partly, l.Partly, all.Paused, l.Paused)
		all.Paused = ""
	}
	all.Problem = cmp.Or(all.Problem, l.Problem)
	all.Open += l.Open
	all.OldestS = max(all.OldestS, l.OldestS)
	all.Adopted += l.Adopted
	all.Lapsed += l.Lapsed
	for _, state := range status.LaneRowStates {
		all.Rows[state] += l.Rows[state]
	}
}

// sumUsage adds up usage. The cost is known only if it is known of every replica that has
// made calls.
func sumUsage(summaries []Summary) (sum status.UsageReport) {
	add := func(to **int64, n *int64) {
		if n != nil {
			total := *n
			if *to != nil {
				total += **to
			}
			*to = &total
		}
	}
	known := false
	usd := 0.0
	for i := range summaries {
		u := &summaries[i].Usage
		sum.Calls += u.Calls
		add(&sum.PromptTokens, u.PromptTokens)
		add(&sum.CompletionTokens, u.CompletionTokens)
		add(&sum.TotalTokens, u.TotalTokens)
		sum.KnownCostUSD += u.KnownCostUSD
		sum.UnpricedCalls += u.UnpricedCalls
		if u.CostUSD != nil {
			known = true
			usd += *u.CostUSD
		}
	}
	if known && sum.UnpricedCalls == 0 {
		sum.CostUSD = &usd
	}
	return sum
}

// telling lists the states by precedence. The state of the stage is the first one that a
// replica has.
var telling = []status.State{
	status.StateHeld, status.StatePaused, status.StateStarved, status.StateWaiting, status.StateWorking, status.StateStarting,
	status.StateIdle, status.StateStopping, status.StateStandby, status.StateDrained, status.StateEnded,
}

// judge sets the state. If not all replicas have it, the text says how many do. Replicas
// that only stand by, or were drained, don't count.
func (w *Whole) judge() {
	rank := func(s status.State) int {
		if i := slices.Index(telling, s); i >= 0 {
			return i
		}
		return len(telling)
	}
	best, active := len(telling)+1, 0
	for i := range w.Replicas {
		r := &w.Replicas[i]
		if r.Status != Answers {
			continue
		}
		if rank(r.State) < best {
			best, w.State, w.Why = rank(r.State), r.State, r.Why
			w.Since, w.Do, w.Row, w.Behind = r.Since, r.Do, r.Row, r.Behind
		}
		if r.State != status.StateStandby && r.State != status.StateDrained {
			active++
		}
	}
	in := 0
	for i := range w.Replicas {
		if r := &w.Replicas[i]; r.Status == Answers && r.State == w.State {
			in++
		}
	}
	if w.Why != "" && in < active {
		w.Why = fmt.Sprintf("%d of %d replicas: %s", in, active, w.Why)
	}
}
