package replicas

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/terminal"
)

// WriteText prints the stage for people: what all replicas do together, then a table of
// the replicas and one of the partitions. Texts of others are printed without control
// characters.
func (w *Whole) WriteText(to io.Writer) error {
	out := terminal.NewTable(to)
	line := out.Line
	line("stage", fmt.Sprintf("%s, %s, %s", w.Stage, w.countText(), terminal.Plural(w.PartitionCount, "partition")))
	state := string(cmp.Or(w.State, "unknown"))
	if w.Since != nil {
		state += " for " + span(w.Time.Sub(*w.Since).Seconds())
	}
	if w.Why != "" {
		state += ": " + w.Why
	}
	line("state", state)
	for i := range w.Pauses {
		line("", w.Pauses[i].text(w.Time))
		line("do", w.Pauses[i].Advice)
	}
	if w.Do != "" && (w.State != status.StatePaused || len(w.Pauses) == 0) {
		line("do", w.Do)
	}
	for i := range w.Replicas {
		if r := &w.Replicas[i]; r.Status == Answers {
			status.WriteHolds(line, r.Holds, w.Why, w.Time)
		}
	}
	if w.Problem != "" {
		line("problem", "other replicas could not be asked: "+w.Problem)
	}
	line("rows", w.Rows.text(slices.ContainsFunc(w.Partitions, func(o Owned) bool { return o.Replica != "" || o.Vacant })))
	line("rate", w.Rows.rateText())
	line("pool", fmt.Sprintf("%d of %d calls in flight, %d waiting; %d sent, %d succeeded, %d capacity retries",
		w.Pool.InFlight, w.Pool.Size, w.Pool.Waiting, w.Pool.Dispatched, w.Pool.Successes, w.Pool.CapacityRetries))
	w.beliefs(line)
	latency := status.LatencyReport{P50: w.Latency.P50, P90: w.Latency.P90, OldestInFlightS: w.Latency.OldestInFlightS}
	line("latency", latency.Text())
	if text := w.Gain(w.Pool.Size); text != "" {
		line("speed-up", text)
	}
	if w.LastRefusal != nil {
		line("refused", w.LastRefusal.Text(w.Time))
	}
	line("cost", costText(&w.Usage, w.Usage.Calls))
	if w.Lane != nil {
		line("lane", w.Lane.text())
	}
	for i := range w.Budget {
		b := &w.Budget[i]
		line("budget", fmt.Sprintf("%s for %s: %.0f%% of it is this stage's, %d in all share it", b.Name, b.Provider, 100*b.Share, b.Members))
	}
	line()
	line("REPLICA", "HOST", "STATE", "PARTITIONS", "RATE", "IN FLIGHT", "RETRIES", "COST", "BUDGET", "NEXT PROBE", "SEEN")
	for i := range w.Replicas {
		line(w.Replicas[i].cells(w.Time)...)
	}
	if w.LeftOut > 0 {
		line(fmt.Sprintf("(and %d more replicas)", w.LeftOut))
	}
	line()
	line("PARTITION", "OWNER", "HOST", "PENDING", "OPEN", "HEAD", "HEAD WAITS")
	for i := range w.Partitions {
		line(w.Partitions[i].cells()...)
	}
	w.notes(line)
	return out.Flush()
}

// beliefsMax is how many replicas have their beliefs in the text.
const beliefsMax = 4

// beliefs prints what the throttles believe. If all believe the same it is printed once,
// and otherwise for each of the first few replicas.
func (w *Whole) beliefs(line func(...string)) {
	if w.Pool.Belief != "" {
		line("throttle", w.Pool.Belief)
		return
	}
	label, shown, left := "throttle", 0, 0
	for i := range w.Replicas {
		r := &w.Replicas[i]
		switch {
		case r.Status != Answers || r.Pool.Belief == "":
		case shown == beliefsMax:
			left++
		default:
			line(label, r.Replica+": "+r.Pool.Belief)
			label, shown = "", shown+1
		}
	}
	if left > 0 {
		line("", fmt.Sprintf("(and %s: stage status -o json)", terminal.Plural(left, "more replica")))
	}
}

// notes prints what the tables have no row for.
func (w *Whole) notes(line func(...string)) {
	for i := range w.Replicas {
		if r := &w.Replicas[i]; r.Status == Answers {
			status.WritePartitionHolds(line, r.Holds, w.Time)
		}
	}
	for i := range w.Replicas {
		if r := &w.Replicas[i]; r.Status == Unreadable {
			line(fmt.Sprintf("replica %s: %s", cmp.Or(r.Replica, "without a name"), r.Note))
		}
	}
}

// countText counts the replicas, as in "3 replicas (1 missing)".
func (w *Whole) countText() string {
	by := make(map[Status]int)
	for i := range w.Replicas {
		by[w.Replicas[i].Status]++
	}
	text := terminal.Plural(by[Answers], "replica")
	var others []string
	for _, s := range []Status{Missed, Unreadable} {
		if by[s] > 0 {
			others = append(others, fmt.Sprint(by[s], " ", s))
		}
	}
	if others != nil {
		text += " (" + strings.Join(others, ", ") + ")"
	}
	return text
}

// Several reports whether there is more to show than what the one replica that was asked
// says about itself.
func (w *Whole) Several() bool {
	return len(w.Replicas) > 1 || w.Problem != "" || slices.ContainsFunc(w.Replicas, func(r Replica) bool { return !r.Self })
}

func (p *Pauses) text(now time.Time) string {
	next := time.Time{}
	if p.NextProbe != nil {
		next = *p.NextProbe
	}
	parts := []string{fmt.Sprintf("%s: %s", terminal.Plural(p.Replicas, "replica"), p.Reason)}
	if p.Held != "" {
		parts = append(parts, p.Held)
	}
	return strings.Join(append(parts, status.NextProbe(next, now)), "; ")
}

// text counts the rows. counted says that a partition has an owner that answers.
func (r *Rows) text(counted bool) string {
	text := fmt.Sprintf("%d succeeded, %d failed", r.Succeeded, r.Failed)
	if counted { // only the owner of a partition knows how many rows are open and pending
		text += fmt.Sprintf(", %d open, %d pending", r.Open, r.Pending)
	}
	if r.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", r.Skipped)
	}
	return text
}

func (r *Rows) rateText() string {
	text := fmt.Sprintf("%.1f rows/s", r.PerSecond)
	if r.ETAS != nil {
		text += ", " + span(*r.ETAS) + " left"
	}
	return text
}

func (l *Lane) text() string {
	var rows []string
	for _, state := range status.LaneRowStates {
		if n := l.Rows[state]; n > 0 {
			rows = append(rows, fmt.Sprint(n, " ", state))
		}
	}
	text := fmt.Sprintf("%d open batches, rows: %s", l.Open, cmp.Or(strings.Join(rows, ", "), "none"))
	if why := cmp.Or(l.Paused, l.partly(), l.Problem); why != "" {
		text += "; " + why
	}
	return text
}

// partly says that a part of the lane is paused, and why.
func (l *Lane) partly() string {
	if l.Partly == "" {
		return ""
	}
	return "paused in part: " + l.Partly
}

// costText returns what is known of the cost in USD.
func costText(u *status.UsageReport, calls uint64) string {
	switch {
	case calls == 0:
		return "-"
	case u.CostUSD != nil:
		return fmt.Sprintf("$%.4f", *u.CostUSD)
	case u.KnownCostUSD > 0:
		return fmt.Sprintf("$%.4f and more", u.KnownCostUSD)
	}
	return "unknown"
}

func (r *Replica) cells(now time.Time) []string {
	state, partitions, seen := string(r.State), ranges(r.Partitions), "now"
	if r.Drained != "" { // it may have taken back what nobody else served
		partitions = strings.TrimPrefix(partitions+", drained", ", ")
	}
	if len(r.Left) > 0 {
		partitions = strings.TrimPrefix(partitions+", not "+ranges(r.Left), ", ")
	}
	if r.Status != Answers {
		state, seen = string(r.Status), terminal.Duration(now.Sub(r.LastSeen))+" ago"
	}
	if r.Status != Answers {
		return []string{terminal.OrDash(r.Replica), terminal.OrDash(r.Host), state, "-", "-", "-", "-", "-", "-", "-", seen}
	}
	probe, budget := "-", "-"
	if r.Pause != nil && r.Pause.NextProbe != nil {
		if in := r.Pause.NextProbe.Sub(now); in > 0 {
			probe = "in " + terminal.Duration(in)
		} else {
			probe = "due"
		}
	}
	if len(r.Budget) > 0 {
		budget = fmt.Sprintf("%.1f%%", 100*r.Budget[0].Share)
	}
	if r.Pause != nil {
		state += " (" + string(r.Pause.Reason) + ")"
	}
	if r.Self {
		seen = "asked"
	}
	return []string{
		r.Replica, terminal.OrDash(r.Host), state, terminal.OrDash(partitions), fmt.Sprintf("%.1f rows/s", r.Rows.PerSecond),
		fmt.Sprintf("%d/%d", r.Pool.InFlight, r.Pool.Size), fmt.Sprint(r.Pool.CapacityRetries), costText(&r.Usage, r.Usage.Calls), budget, probe, seen,
	}
}

func (o *Owned) cells() []string {
	pending, open, head, waits := "-", "-", "-", "-"
	if o.Replica != "" {
		pending, open = fmt.Sprint(o.PendingRows), fmt.Sprint(o.OpenRows)
	}
	if o.HeadSequence != 0 {
		head, waits = fmt.Sprint(o.HeadSequence), terminal.Duration(time.Duration(o.HeadOfLineS*float64(time.Second)))
	}
	owner := cmp.Or(o.Replica, "nobody")
	if o.Vacant {
		owner = string(status.StateIdle)
	}
	if o.Paused != "" {
		owner += ", paused"
	}
	return []string{fmt.Sprint(o.Partition.Partition), owner, terminal.OrDash(o.Host), pending, open, head, waits}
}

// ranges writes sorted numbers, as in "0-3, 6".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		if end == i {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[end]))
		}
		i = end + 1
	}
	return strings.Join(parts, ", ")
}

// span writes seconds as a duration in whole seconds.
func span(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}
