package verify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/terminal"
)

// violationsKept is how many violations of each kind are named; the others are counted.
const violationsKept = 50

// Kinds of violations.
const (
	violationLost        = "lost"                // a row without a result
	violationDoubled     = "doubled"             // a second result
	violationDisorder    = "out_of_order"        // a result after that of a later row
	violationResult      = "bad_result"          // a result that says something else than the streams
	violationClaim       = "bad_claim"           // a claim that does not fit the results before it
	violationNoRowEvent  = "row_event_missing"   // no row event of the result's owner
	violationRowEvent    = "row_event_differs"   // the row event says something else than the result
	violationNoCallEvent = "call_event_missing"  // fewer calls recorded than the row event counts
	violationCallEvent   = "call_event_extra"    // more of them
	violationRetries     = "retries_differ"      // capacity retries do not add up
	violationTokens      = "tokens_differ"       // tokens do not add up
	violationCost        = "cost_differs"        // cost does not add up
	violationRun         = "run_summary_differs" // the summary at the end of a run says something else than the streams
)

// The verdicts.
const (
	VerdictProven     = "proven"
	verdictViolated   = "violated"
	verdictCannotTell = "cannot_tell"
)

// wholeStage stands for the partition of what is about none.
const wholeStage = -1

// violation is one thing that must not be. Partition is -1 where it is about a whole run, Sequence 0 where it is about no
// single row.
type violation struct {
	Kind      string `json:"kind"`
	Partition int    `json:"partition"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Text      string `json:"text"`
}

// Report is what verify found; as JSON it is what --json prints.
type Report struct {
	Stage      string              `json:"stage"`
	Verdict    string              `json:"verdict"`
	Partitions []verifiedPartition `json:"partitions"`
	Audit      verifiedAudit       `json:"audit"`
	Violations violationList       `json:"violations"`
	// CannotTell says what keeps verify from a verdict, Notes what the reader should know about it.
	CannotTell []string `json:"cannot_tell"`
	Notes      []string `json:"notes"`
}

// verifiedPartition counts what was found in one partition.
type verifiedPartition struct {
	Partition     int    `json:"partition"`
	HighWaterMark uint64 `json:"high_water_mark"`
	Claims        int    `json:"claims"`
	Results       int    `json:"results"`
	Succeeded     int    `json:"succeeded"`
	Failed        int    `json:"failed"`
	// Pending rows wait behind the high-water mark; null: not known.
	Pending *uint64 `json:"pending"`
	// ByInput results have their row in the input, ByAudit ones are vouched for by the audit alone.
	ByInput int `json:"by_input"`
	ByAudit int `json:"by_audit"`
	// AuditExpired results have their row in the input, and no audit any more: it can have expired.
	AuditExpired int `json:"audit_expired"`
	// AuditGone results have their row in the input, and no audit any more, though it can't have expired.
	AuditGone int `json:"audit_gone"`
	// Unknown results have neither.
	Unknown int `json:"unknown"`
	// ResultsGone rows are told of by input or audit, and their results lay in the part of the results that was removed.
	ResultsGone int `json:"results_gone"`
}

// verifiedAudit sums the call events.
type verifiedAudit struct {
	Calls           uint64 `json:"calls"`
	CapacityRetries uint64 `json:"capacity_retries"`
	// Elsewhere are calls that no result came of: terms that ended first, rows that are pending.
	Elsewhere uint64 `json:"calls_without_result"`
	// Batched are the calls of batched requests, which have no rows.
	Batched uint64 `json:"calls_of_batches"`
	usage   auditlog.UsageSum
	Tokens  *int64   `json:"tokens"`
	CostUSD *float64 `json:"cost_usd"`
	// Runs is how many processes the audit tells of, RunsChecked how many of them have a summary that was compared.
	Runs        int `json:"runs"`
	RunsChecked int `json:"runs_checked"`
}

type violationList struct {
	Count  int            `json:"count"`
	ByKind map[string]int `json:"by_kind"`
	First  []violation    `json:"first"`
}

func newVerifyReport(stage string) *Report {
	return &Report{
		Stage: stage, Partitions: []verifiedPartition{}, CannotTell: []string{}, Notes: []string{},
		Violations: violationList{ByKind: map[string]int{}, First: []violation{}},
	}
}

// violate notes a violation; the first of each kind are kept.
func (r *Report) violate(kind string, partition int, seq uint64, format string, args ...any) {
	v := &r.Violations
	v.Count++
	v.ByKind[kind]++
	if v.ByKind[kind] <= violationsKept {
		v.First = append(v.First, violation{Kind: kind, Partition: partition, Sequence: seq, Text: fmt.Sprintf(format, args...)})
	}
}

func (r *Report) cannot(format string, args ...any) {
	r.CannotTell = append(r.CannotTell, fmt.Sprintf(format, args...))
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// conclude comes to the verdict, once everything is read.
func (r *Report) conclude() {
	for _, p := range r.Partitions {
		if p.ByAudit > 0 {
			r.note("partition %d: the rows of %d results are no longer in the input; they were checked against the audit", p.Partition, p.ByAudit)
		}
		if p.AuditExpired > 0 {
			r.note("partition %d: the audit of %d results has expired; their calls and tokens were not checked", p.Partition, p.AuditExpired)
		}
		if p.AuditGone > 0 {
			r.cannot("partition %d: the audit of %d results is gone, and it is too young to have expired", p.Partition, p.AuditGone)
		}
		if p.Unknown > 0 {
			r.cannot("partition %d: %d results have neither their row in the input nor their events in the audit any more", p.Partition, p.Unknown)
		}
	}
	slices.SortStableFunc(r.Violations.First, func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Sequence, b.Sequence))
	})
	if r.Audit.Calls == 0 && len(r.CannotTell) == 0 { // nothing was asked, so nothing is unknown
		r.Audit.usage.Reported = &auditlog.Usage{CostUSD: new(float64)}
	}
	if u := r.Audit.usage.Total(); u != nil {
		r.Audit.Tokens, r.Audit.CostUSD = &u.TotalTokens, u.CostUSD
	}
	switch {
	case r.Violations.Count > 0:
		r.Verdict = verdictViolated
	case len(r.CannotTell) > 0:
		r.Verdict = verdictCannotTell
	default:
		r.Verdict = VerdictProven
	}
}

// UnprovenError is the end of a verification that found no violation and could not look at everything.
type UnprovenError struct{ Reasons []string }

func (e *UnprovenError) Error() string {
	return "verify cannot tell:\n" + strings.Join(e.Reasons, "\n")
}

// Err is what the command ends with: nil when all is proven.
func (r *Report) Err() error {
	switch r.Verdict {
	case verdictViolated:
		kinds := make([]string, 0, len(r.Violations.ByKind))
		for _, kind := range slices.Sorted(maps.Keys(r.Violations.ByKind)) {
			kinds = append(kinds, fmt.Sprintf("%d %s", r.Violations.ByKind[kind], kind))
		}
		return fmt.Errorf("verify found violations: %s", strings.Join(kinds, ", "))
	case verdictCannotTell:
		return &UnprovenError{Reasons: r.CannotTell}
	}
	return nil
}

func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText prints the report for people. Where nothing is violated the reasons why it cannot tell are left to the error
// that the command ends with.
func (r *Report) WriteText(w io.Writer) {
	for _, p := range r.Partitions {
		terminal.PrintLine(w, "partition %d: %d results up to row %d in %d terms: %d succeeded, %d failed; %s", p.Partition,
			p.Results, p.HighWaterMark, p.Claims, p.Succeeded, p.Failed, pendingText(p.Pending))
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
	for _, note := range r.Notes {
		terminal.PrintLine(w, "note: %s", note)
	}
	if r.Verdict == verdictViolated {
		for _, why := range r.CannotTell {
			terminal.PrintLine(w, "cannot tell: %s", why)
		}
	}
	named := make(map[string]int)
	for _, v := range r.Violations.First {
		named[v.Kind]++
		terminal.PrintLine(w, "VIOLATION %s: %s%s", v.Kind, whereText(v.Partition), v.Text)
	}
	for _, kind := range slices.Sorted(maps.Keys(named)) {
		if more := r.Violations.ByKind[kind] - named[kind]; more > 0 {
			terminal.PrintLine(w, "VIOLATION %s: and %d more", kind, more)
		}
	}
	if r.Verdict == VerdictProven {
		terminal.PrintLine(w, "proven: every row up to the high-water mark has exactly one result, in stream order, and the audit adds up")
	}
}

func whereText(partition int) string {
	if partition == wholeStage {
		return ""
	}
	return fmt.Sprintf("partition %d: ", partition)
}

func pendingText(n *uint64) string {
	if n == nil {
		return "pending rows not known"
	}
	return fmt.Sprintf("%d rows pending", *n)
}
