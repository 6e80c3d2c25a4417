package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/terminal"
)

// WriteText prints the report for people: state, rows, pool and throttle, then a table of
// the shared budget, if there is one, and a table of the partitions. Texts of the
// provider are printed without control characters.
func (r *Report) WriteText(w io.Writer) error {
	out := terminal.NewTable(w)
	line := out.Line
	line("stage", fmt.Sprintf("%s, version %s, run %s, up %s", r.Stage, r.Version, r.RunID, span(r.UptimeS)))
	line("state", r.stateText())
	if r.State == StatePaused {
		line("", r.pauseText())
	}
	// The report of an earlier version has advice only about a pause.
	if do := cmp.Or(r.Do, r.Pool.Advice); do != "" {
		line("do", do)
	}
	WriteHolds(line, r.Holds, r.Why, r.Time)
	line("rows", r.rowsText())
	line("rate", r.Rows.rateText())
	line("pool", r.Pool.text())
	line("throttle", r.Pool.throttleText(r.Time))
	if r.Pool.Belief != nil {
		line("", r.Pool.Belief.Text)
	}
	line("latency", r.Latency.Text())
	if text := r.Gain(r.Pool.Size); text != "" {
		line("speed-up", text)
	}
	if f := r.LastRefusal; f != nil {
		line("refused", f.Text(r.Time))
	}
	if r.Lane != nil {
		line("lane", r.Lane.text())
	}
	line()
	if len(r.Budget) > 0 {
		line("BUDGET", "PROVIDER", "MODE", "MEMBERS", "SHARE", "RATE", "LEADER")
		for i := range r.Budget {
			line(r.Budget[i].cells()...)
		}
		line()
	}
	if r.Lane != nil && len(r.Lane.Batches) > 0 {
		line(LaneBatchTitles()...)
		for i := range r.Lane.Batches {
			line(r.Lane.Batches[i].Cells()...)
		}
		line()
	}
	line("PARTITION", "ROLE", "PENDING", "OPEN", "HEAD", "HEAD WAITS", "OWNER")
	for i := range r.Partitions {
		line(r.Partitions[i].cells()...)
	}
	WritePartitionHolds(line, r.Holds, r.Time)
	for i := range r.Partitions {
		p := &r.Partitions[i]
		if p.JournalProblem != "" {
			line(fmt.Sprintf("journal of partition %d: %s", p.Partition, p.JournalProblem))
		}
		if p.DropProblem != "" {
			line(fmt.Sprintf("old results of partition %d: %s", p.Partition, p.DropProblem))
		}
	}
	return out.Flush()
}

// WriteHolds prints why rows wait, each reason with what to do about it. It leaves out what
// the state says already.
func WriteHolds(line func(...string), holds hold.List, state string, now time.Time) {
	for i := range holds {
		h := &holds[i]
		if h.Scope == hold.Partition || h.Class() == hold.Over || h.Why != "" && strings.Contains(state, h.Why) {
			continue
		}
		line("waits", h.String()+lasting(h, now))
		line("", h.Do)
	}
}

// WritePartitionHolds prints why the rows of partitions wait, as in "partition 3: paused by
// alice@laptop". It leaves out partitions that are simply with another replica.
func WritePartitionHolds(line func(...string), holds hold.List, now time.Time) {
	for i := range holds {
		if h := &holds[i]; h.Scope == hold.Partition && h.Kind != hold.Standby && h.Class() != hold.Over {
			line(h.String())
			line("  " + strings.TrimLeft(lasting(h, now)+"; "+h.Do, ",; "))
		}
	}
}

// lasting says for how long a hold lasts, as in ", for 2m0s". It returns "" where that is
// unknown.
func lasting(h *hold.Hold, now time.Time) string {
	if h.Since.IsZero() {
		return ""
	}
	return ", for " + span(now.Sub(h.Since).Seconds())
}

// stateText is the state, since when and why, as in "paused for 2m3s: no credit".
func (r *Report) stateText() string {
	text := string(r.State)
	if r.Since != nil {
		text += " for " + span(r.Time.Sub(*r.Since).Seconds())
	}
	if r.Why != "" {
		text += ": " + r.Why
	}
	return text
}

// pauseText is what a pause means for the rows, and when it may end.
func (r *Report) pauseText() string {
	parts := []string{string(r.Pool.PauseReason)}
	if r.Pool.Held != "" {
		parts = append(parts, r.Pool.Held)
	}
	if r.Pool.NextProbe != nil || r.Pool.PauseReason == hold.Operator {
		parts = append(parts, r.Pool.NextProbeText(r.Time))
	}
	return strings.Join(parts, "; ")
}

// rowsText counts the rows of this process. Only the owner of a partition knows how many
// are open and pending.
func (r *Report) rowsText() string {
	text := fmt.Sprintf("%d succeeded, %d failed", r.Rows.Succeeded, r.Rows.Failed)
	if slices.ContainsFunc(r.Partitions, func(p PartitionReport) bool { return p.owned() }) {
		text += fmt.Sprintf(", %d open, %d pending", r.Rows.Open, r.Rows.Pending)
	}
	if r.Rows.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", r.Rows.Skipped)
	}
	return text
}

// rateText is how fast rows are emitted, and how long those that wait will take.
func (r *rowsReport) rateText() string {
	text := fmt.Sprintf("%.1f rows/s", r.PerSecond)
	if r.ETAS != nil {
		text += ", " + span(*r.ETAS) + " left"
	}
	return text
}

// text returns what the pool does.
func (p *PoolReport) text() string {
	return fmt.Sprintf("%d of %d calls in flight, %d waiting; %d sent, %d succeeded, %d capacity retries",
		p.InFlight, p.Size, p.Waiting, p.Dispatched, p.Successes, p.CapacityRetries)
}

// throttleText is what the throttle allows: rate, delay and concurrency, or that the
// provider asked to wait.
func (p *PoolReport) throttleText(now time.Time) string {
	text := p.Throttle + ": no limit on the rate"
	if p.Allowed != nil {
		delay := time.Duration(p.DelayMS * float64(time.Millisecond))
		text = fmt.Sprintf("%s: %s, delay %s", p.Throttle, perSecond(*p.Allowed), terminal.Duration(delay))
	}
	if p.Concurrency != nil {
		text += fmt.Sprintf(", at most %d in flight", *p.Concurrency)
	}
	if p.LawPausedUntil != nil {
		text += "; none for " + terminal.Duration(p.LawPausedUntil.Sub(now)) + ", as the provider asked"
	}
	return text
}

// Text is how long calls take, as in "p50 812 ms, p90 1.53 s; oldest call in flight 43.1
// s".
func (l *LatencyReport) Text() string {
	took := func(s *float64) string {
		if s == nil {
			return "-"
		}
		return terminal.Duration(time.Duration(*s * float64(time.Second)))
	}
	text := "no call succeeded within a minute"
	if l.P50 != nil {
		text = fmt.Sprintf("p50 %s, p90 %s", took(l.P50), took(l.P90))
	}
	if l.OldestInFlightS == nil {
		return text + "; no call in flight"
	}
	return text + "; oldest call in flight " + took(l.OldestInFlightS)
}

// Text is when and how a call was refused last, as in "4.2 s ago, by openai: 429
// rate_limit_exceeded: …".
func (f *RefusalReport) Text(now time.Time) string {
	text := fmt.Sprintf("%s ago, by %s: %s", terminal.Duration(max(now.Sub(f.Time), time.Millisecond)), f.Provider, strings.TrimPrefix(f.Error, f.Provider+": "))
	if f.RetryAfterMS != nil {
		text += "; it asked to wait " + terminal.Duration(time.Duration(*f.RetryAfterMS*float64(time.Millisecond)))
	}
	return text
}

// cells returns the columns of the budget of one provider.
func (b *BudgetReport) cells() []string {
	rate := "-"
	if b.Rate != nil {
		rate = perSecond(*b.Rate)
	}
	return []string{
		b.Name, b.Provider, string(b.Mode), fmt.Sprint(b.Members), fmt.Sprintf("%.1f%%", 100*b.Share), rate, terminal.OrDash(b.Leader),
	}
}

// cells are the columns of a partition. Its head is the oldest row that was taken and has
// no result yet.
func (p *PartitionReport) cells() []string {
	pending, open, head, waits := "-", "-", "-", "-"
	if p.owned() {
		pending, open = fmt.Sprint(p.PendingRows), fmt.Sprint(p.Open())
	}
	if p.HeadSequence != 0 {
		head, waits = fmt.Sprint(p.HeadSequence), terminal.Duration(time.Duration(p.HeadOfLineS*float64(time.Second)))
	}
	role := p.Role
	if p.Vacant {
		role = string(StateIdle)
	}
	if p.Paused != "" {
		role += ", paused"
	}
	return []string{fmt.Sprint(p.Partition), role, pending, open, head, waits, terminal.OrDash(p.Owner)}
}

// owned reports whether this process owns the partition.
func (p *PartitionReport) owned() bool { return consumer.Role(p.Role) == consumer.Owner }

// span writes seconds as a duration in whole seconds.
func span(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}
