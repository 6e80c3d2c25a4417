package verify

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/terminal"
)

// The verdicts.
const (
	VerdictProven     = "proven"      // everything was checked and nothing is wrong
	VerdictViolated   = "violated"    // there are violations, whatever else could not be checked
	VerdictCannotTell = "cannot_tell" // there are no violations, and something could not be checked
)

// Report is what verify found. --json prints it as JSON.
type Report struct {
	Stage      string              `json:"stage"`
	Verdict    string              `json:"verdict"` // proven, violated or cannot_tell
	Partitions []verifiedPartition `json:"partitions"`
	Audit      verifiedAudit       `json:"audit"`
	// Batches describes the batch lane, or is nil.
	Batches *verifiedBatches `json:"batches,omitempty"`
	// Roots are the ends of the chains, by partition. RootsFound counts the given roots
	// that are on today's chains. Erased counts the results that only their tombstones
	// show.
	Roots      []*Root       `json:"roots"`
	RootsFound int           `json:"roots_found,omitempty"`
	Erased     int           `json:"erased"`
	Violations violationList `json:"violations"`
	// CannotTell lists the checks that were impossible. Notes hold advice about the
	// verdict.
	CannotTell []string `json:"cannot_tell"`
	Notes      []string `json:"notes"`
}

// verifiedPartition holds the counts of one partition.
type verifiedPartition struct {
	Partition int `json:"partition"`
	Claims    int `json:"claims"`

	// Order and OrderKey are taken from the last claim. HighWaterMark is the row of the
	// last result. Where results are not in stream order it is the low-water mark, and
	// Ahead counts the rows above it that have their result.
	Order         streams.Order `json:"order"`
	OrderKey      string        `json:"order_key,omitempty"`
	HighWaterMark uint64        `json:"high_water_mark"`
	Ahead         int           `json:"ahead"`
	reordered     bool          // the order changed

	// Results counts the results. Each of them is also in one of the counts that follow,
	// unless it is a violation itself.
	Results   int `json:"results"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`

	// Replacements counts the results that take the place of an earlier one that failed.
	Replacements int `json:"replacements"`

	// Objects counts the results whose bodies are objects of a bucket, and were read.
	Objects int `json:"objects,omitempty"`

	// Erased counts the results that only their tombstones show.
	Erased int `json:"erased,omitempty"`

	// Dropped describes results that were older than STAGE_RESULT_MAX_AGE. They are not
	// among Results.
	Dropped *droppedResults `json:"dropped,omitempty"`

	// Pending counts the rows after the high-water mark, which have no result yet. It is
	// null if that is unknown.
	Pending *uint64 `json:"pending"`

	// ByInput counts the results whose row is in the input, ByAudit those that only have
	// events in the audit, and Unknown those that have neither. Some of ByInput have no
	// events any more: AuditExpired by age or a limit, and AuditGone although they can't
	// have expired.
	ByInput      int `json:"by_input"`
	ByAudit      int `json:"by_audit"`
	AuditExpired int `json:"audit_expired"`
	AuditGone    int `json:"audit_gone"`
	Unknown      int `json:"unknown"`

	// Linked counts the results that were compared with the row that they name. foreign
	// counts those whose rows are no results of the stage before.
	Linked  int `json:"linked,omitempty"`
	foreign int

	// ResultsGone counts the rows in the input or the audit whose results were in the
	// part of the log that was removed.
	ResultsGone int `json:"results_gone"`
}

// verifiedAudit sums the call events.
type verifiedAudit struct {
	Calls           uint64 `json:"calls"`
	CapacityRetries uint64 `json:"capacity_retries"` // of Calls
	// Elsewhere counts the calls whose term ended before the result, or whose row is
	// pending.
	Elsewhere uint64 `json:"calls_without_result"`
	// Batched counts the calls for batched requests, which have no rows.
	Batched uint64 `json:"calls_of_batches"`

	// Tokens and CostUSD sum up all Calls. Each is null if it is unknown.
	Tokens  *int64   `json:"tokens"`
	CostUSD *float64 `json:"cost_usd"`
	usage   auditlog.UsageSum

	// Runs counts the processes in the audit, and RunsChecked those whose summaries were
	// compared.
	Runs        int `json:"runs"`
	RunsChecked int `json:"runs_checked"`
}

func newReport(stage string) *Report {
	return &Report{
		Stage: stage, Partitions: []verifiedPartition{}, CannotTell: []string{}, Notes: []string{},
		Roots:      []*Root{},
		Violations: violationList{ByKind: map[violationKind]int{}, First: []violation{}},
	}
}

// cannot notes a reason why the verdict can't be that all is proven.
func (r *Report) cannot(format string, args ...any) {
	r.CannotTell = append(r.CannotTell, fmt.Sprintf(format, args...))
}

// note notes what the reader should know about the verdict.
func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// conclude sets the verdict, once everything is read.
func (r *Report) conclude() {
	for _, p := range r.Partitions {
		for _, found := range []struct {
			results int
			report  func(format string, args ...any)
			text    string
		}{
			{p.ByAudit, r.note, "the rows of %d results are no longer in the input; they were checked against the audit"},
			{p.AuditExpired, r.note, "the audit of %d results has expired; their calls and tokens were not checked"},
			{p.AuditGone, r.cannot, "the audit of %d results is gone, and it is too young to have expired"},
			{p.Unknown, r.cannot, "%d results no longer have their row in the input or their events in the audit"},
		} {
			if found.results > 0 {
				found.report("partition %d: "+found.text, p.Partition, found.results)
			}
		}
	}
	slices.SortStableFunc(r.Violations.First, func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Sequence, b.Sequence))
	})
	if r.Audit.Calls == 0 && len(r.CannotTell) == 0 { // no call, so nothing is unknown
		r.Audit.usage.Reported = &auditlog.Usage{CostUSD: new(float64)}
	}
	if u := r.Audit.usage.Total(); u != nil {
		r.Audit.Tokens, r.Audit.CostUSD = &u.TotalTokens, u.CostUSD
	}
	switch {
	case r.Violations.Count > 0:
		r.Verdict = VerdictViolated
	case len(r.CannotTell) > 0:
		r.Verdict = VerdictCannotTell
	default:
		r.Verdict = VerdictProven
	}
}

// UnprovenError is the verdict of a verification that found no violation and could not
// check everything.
type UnprovenError struct {
	Reasons []string // what could not be checked, and why
}

// Error lists the reasons, one a line.
func (e *UnprovenError) Error() string {
	return "verify cannot tell:\n" + strings.Join(e.Reasons, "\n")
}

// Err returns nil if all is proven, [*UnprovenError] if something could not be checked,
// and another error for violations.
func (r *Report) Err() error {
	switch r.Verdict {
	case VerdictViolated:
		kinds := make([]string, 0, len(r.Violations.ByKind))
		for _, kind := range slices.Sorted(maps.Keys(r.Violations.ByKind)) {
			kinds = append(kinds, fmt.Sprintf("%d %s", r.Violations.ByKind[kind], kind))
		}
		return fmt.Errorf("verify found violations: %s", strings.Join(kinds, ", "))
	case VerdictCannotTell:
		return &UnprovenError{Reasons: r.CannotTell}
	}
	return nil
}

// WriteText prints the report for people. Without violations the reasons why verify
// cannot tell are left out: they are in the error of [Report.Err].
func (r *Report) WriteText(w io.Writer) {
	for _, p := range r.Partitions {
		pending := "pending rows unknown"
		if p.Pending != nil {
			pending = fmt.Sprintf("%d rows pending", *p.Pending)
		}
		replacing := ""
		if p.Replacements > 0 {
			replacing = fmt.Sprintf(", %d of them in place of a failed one", p.Replacements)
		}
		if p.Objects > 0 {
			replacing += fmt.Sprintf(", %d with the body in the object store", p.Objects)
		}
		terminal.PrintLine(w, "partition %d: %d results%s in %d terms: %d succeeded, %d failed%s; %s", p.Partition,
			p.Results, p.upTo(), p.Claims, p.Succeeded, p.Failed, replacing, pending)
	}
	a := &r.Audit
	tokens := "unknown tokens"
	if a.Tokens != nil {
		tokens = fmt.Sprintf("%d tokens", *a.Tokens)
	}
	batched := ""
	if a.Batched > 0 {
		batched = fmt.Sprintf("%d of batched requests, ", a.Batched)
	}
	terminal.PrintLine(w, "audit: %d calls, %d of them capacity retries, %s%d of rows or terms without a result; %s, cost in USD %s; %d of %d runs have a summary",
		a.Calls, a.CapacityRetries, batched, a.Elsewhere, tokens, cost.Format(a.usage.Total()), a.RunsChecked, a.Runs)
	if b := r.Batches; b != nil {
		terminal.PrintLine(w, "%s", b.text())
	}
	if r.Erased > 0 {
		terminal.PrintLine(w,
			"erased: %d results, whose tombstones stand for them in the chain", r.Erased)
	}
	for _, p := range r.Partitions {
		if d := p.Dropped; d != nil {
			terminal.PrintLine(w,
				"dropped: %d results up to row %d of partition %d, for their age; the chain "+
					"goes on from there",
				d.Results, d.Row, p.Partition)
		}
	}
	for _, root := range r.Roots {
		terminal.PrintLine(w, "%v", *root)
	}
	if r.RootsFound > 0 {
		terminal.PrintLine(w, "roots: %d of those given are on the chain", r.RootsFound)
	}
	for _, note := range r.Notes {
		terminal.PrintLine(w, "note: %s", note)
	}
	if r.Verdict == VerdictViolated {
		for _, why := range r.CannotTell {
			terminal.PrintLine(w, "cannot tell: %s", why)
		}
	}
	r.Violations.write(w)
	if r.Verdict == VerdictProven {
		mark, order := r.proven()
		terminal.PrintLine(w,
			"proven: every row up to the %s has exactly one result, %sand the audit adds up", mark,
			order)
	}
}

// upTo says how far the results reach, and in which order they are if that is not stream
// order.
func (p *verifiedPartition) upTo() string {
	var order string
	switch {
	case p.Order == streams.OrderKey && p.OrderKey != "":
		order = fmt.Sprintf(" in order by key (%s),", p.OrderKey)
	case p.Order == streams.OrderKey:
		order = " in order by key,"
	case p.Order == streams.OrderNone:
		order = " in no order,"
	default:
		return fmt.Sprintf(" up to row %d", p.HighWaterMark)
	}
	return fmt.Sprintf("%s up to row %d and %d above it,", order, p.HighWaterMark, p.Ahead)
}

// proven returns up to which mark the results are proven, and in which order.
func (r *Report) proven() (mark, order string) {
	mark, order = "high-water mark", "in stream order, "
	for i, p := range r.Partitions {
		switch {
		case p.reordered || i > 0 && p.Order != r.Partitions[0].Order:
			return "low-water mark", "in the order that its claim names, "
		case p.Order == streams.OrderKey:
			mark, order = "low-water mark", "those of a key in stream order, "
		case p.Order == streams.OrderNone:
			mark, order = "low-water mark", ""
		}
	}
	return mark, order
}
