package verify

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/llm-stage/stage/internal/terminal"
)

// violationKind is one thing that verify checks. It names the violation in the report;
// docs/verify.md lists what each means. A new check is a kind, its line in checks of the
// tests, and a call of violate where the streams show it:
//
//   - on a result alone or among the others: log.go, keyed.go and chained.go
//   - against its row: links.go
//   - against its audit: auditor.go and items.go
//   - on a whole run: runs.go
//   - on a batch: batches.go
type violationKind string

const (
	violationLost        violationKind = "lost"
	violationDoubled     violationKind = "doubled"
	violationDisorder    violationKind = "out_of_order"
	violationResult      violationKind = "bad_result"
	violationReplacement violationKind = "bad_replacement"
	violationClaim       violationKind = "bad_claim"
	violationLow         violationKind = "bad_low"
	violationKey         violationKind = "bad_key"
	violationNoRowEvent  violationKind = "row_event_missing"
	violationRowEvent    violationKind = "row_event_differs"
	violationNoCallEvent violationKind = "call_event_missing"
	violationCallEvent   violationKind = "call_event_extra"
	violationObject      violationKind = "bad_object"
	violationRetries     violationKind = "retries_differ"
	violationTokens      violationKind = "tokens_differ"
	violationCost        violationKind = "cost_differs"
	violationRun         violationKind = "run_summary_differs"
	violationBatch       violationKind = "batch_differs"
	violationCustomID    violationKind = "custom_id_differs"
	violationPaidTwice   violationKind = "paid_twice"
	violationItem        violationKind = "bad_item"
	violationLink        violationKind = "bad_link"
	violationOrigin      violationKind = "bad_origin"
	violationChain       violationKind = "chain_broken"
	violationDeleted     violationKind = "deleted"
	violationEvent       violationKind = "event_altered"
	violationErasure     violationKind = "erasure_unfinished"
	violationRoot        violationKind = "root_differs"
)

// violationsKept is how many violations of each kind are named; the others are counted.
const violationsKept = 50

// wholeStage stands for the partition of a violation that belongs to none.
const wholeStage = -1

// violation is one contradiction between the streams.
type violation struct {
	Kind      violationKind `json:"kind"`
	Partition int           `json:"partition"`          // wholeStage if it is about a run
	Sequence  uint64        `json:"sequence,omitempty"` // 0 means that it is about no single row
	Text      string        `json:"text"`
}

// violationList counts all violations and holds the first of each kind.
type violationList struct {
	Count  int                   `json:"count"`
	ByKind map[violationKind]int `json:"by_kind"`
	First  []violation           `json:"first"` // at most violationsKept of each kind
}

// violate notes a violation. The first ones of each kind are kept.
func (r *Report) violate(kind violationKind, partition int, seq uint64, format string, args ...any) {
	l := &r.Violations
	l.Count++
	l.ByKind[kind]++
	if l.ByKind[kind] <= violationsKept {
		l.First = append(l.First, violation{Kind: kind, Partition: partition, Sequence: seq, Text: fmt.Sprintf(format, args...)})
	}
}

// findings are what is found in one partition: its counts, and its violations, which go into
// the report of the whole stage.
type findings struct {
	report *Report
	stats  verifiedPartition
}

// violate notes a violation of the partition. seq is 0 if it is about no single row.
func (f *findings) violate(kind violationKind, seq uint64, format string, args ...any) {
	f.report.violate(kind, f.stats.Partition, seq, format, args...)
}

// write prints the violations, and how many of each kind are not named.
func (l *violationList) write(w io.Writer) {
	named := make(map[violationKind]int)
	for _, v := range l.First {
		named[v.Kind]++
		where := ""
		if v.Partition != wholeStage {
			where = fmt.Sprintf("partition %d: ", v.Partition)
		}
		terminal.PrintLine(w, "VIOLATION %s: %s%s", v.Kind, where, v.Text)
	}
	for _, kind := range slices.Sorted(maps.Keys(named)) {
		if more := l.ByKind[kind] - named[kind]; more > 0 {
			terminal.PrintLine(w, "VIOLATION %s: and %d more", kind, more)
		}
	}
}
