package verify

import (
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
)

// auditor compares a result with what the audit has of its row: the row event with the
// result, and the call events with the row event. Where the audit has lost events, it says
// so in place of a violation.
type auditor struct {
	*findings
	log   *logVerifier
	links *linkVerifier
	runs  *runVerifier
	gap   auditGap
	used  uint64 // calls that the checked results were made of; each counts once
}

// auditGap is which events of a partition may be missing from the audit, without a
// violation.
type auditGap struct {
	// until is the time until which events may be missing, or zero if none is missing.
	until time.Time
	// byItself is like until, but leaves out events that only a person can have removed. It
	// is used for results that name their row event, because a removal of their events must
	// be noticed.
	byItself time.Time
	// expired is the time until which results were stored whose events can have expired.
	expired time.Time
}

// auditSlack is how far the clocks of stage and server may be apart. Events carry the time
// of the stage, and what a stream has lost is known by the time of the server.
const auditSlack = time.Minute

// row checks a result against the events of its row, which may be nil.
func (a *auditor) row(h *verifiedRow, row *rowAudit) {
	event := row.by(h.term)
	switch {
	case h.erased:
	case event == nil && h.late:
	case event == nil && a.countUnaudited(h, h.term.since, h.Stored):
	case event == nil:
		a.violate(violationNoRowEvent, h.Seq,
			"row %d has no row event of %s, the owner of its result", h.Seq, h.Owner)
		a.countAudited(h)
	default:
		a.check(h, row, event)
	}
}

// countAudited counts a result whose audit is there.
func (a *auditor) countAudited(h *verifiedRow) {
	if h.inInput {
		a.stats.ByInput++
	} else {
		a.stats.ByAudit++
	}
}

// countUnaudited counts a result whose audit is missing because the stream has lost it,
// and reports whether that is possible. The missing events were stored after since, the
// first of them before until.
//
// A log that has lost results does not show whether the audit stream was created again
// while the stage ran. In that case an event may be gone if the first event of its
// process, which is its start, is missing.
func (a *auditor) countUnaudited(h *verifiedRow, since, until time.Time) bool {
	gone := a.gap.until
	if h.event != "" {
		gone = a.gap.byItself
	}
	whole := gone.IsZero() && (!a.log.resultsGone || a.runs.started(h.Owner))
	if whole || !gone.IsZero() && !since.Before(gone) {
		return false
	}
	if !h.inInput {
		a.stats.Unknown++
		return true
	}
	a.stats.ByInput++
	if until.Before(a.gap.expired) {
		a.stats.AuditExpired++
	} else {
		a.stats.AuditGone++
	}
	return true
}

// check compares a result with its row event, and the row event with the call events.
func (a *auditor) check(h *verifiedRow, row *rowAudit, event *rowFacts) {
	if h.key.compare(a.log.passed(h.key)) <= 0 { // later rows of the term were taken later
		h.term.since = later(h.term.since, event.queued.Add(-auditSlack))
	}
	if a.log.order.Order == streams.OrderKey && h.Key != nil && event.key != nil && streams.KeyHeader(*event.key) != *h.Key {
		a.violate(violationRowEvent, h.Seq,
			"row %d has a result with key %q and a row event with key %q", h.Seq, *h.Key,
			*event.key)
	}
	if event.status != h.Status {
		a.violate(violationRowEvent, h.Seq,
			"row %d has a result with status %s and a row event with status %s", h.Seq, h.Status,
			event.status)
	}
	if h.sha != "" && event.result != "" && event.result != h.sha {
		a.violate(violationRowEvent, h.Seq,
			"row %d has another result than that of its row event: the SHA-256 of its body is "+
				"%s, not %s",
			h.Seq, h.sha, event.result)
	}
	if h.event != "" && proof.EventName(event.hash) != h.event {
		a.violate(violationEvent, h.Seq,
			"row %d has another row event of %s than the one that its result names (%s): it "+
				"was altered",
			h.Seq, h.Owner, proof.HeaderEvent)
	}
	a.links.checkEvent(h, event)

	calls, ok := row.chosen(event)
	since, until := event.started.Add(-auditSlack), event.started
	a.checkElements(h, row)
	searched := event.source == auditlog.SourceJournal || row.laned() || row.fanned()
	if searched {
		since, until = time.Time{}, h.Stored // when the earlier term made the calls is unknown
	}
	if !ok && a.countUnaudited(h, since, until) {
		return
	}
	a.countAudited(h)
	a.used += uint64(len(calls))

	owners := event.term.owner
	if len(event.earlier) > 0 {
		owners += " and the earlier terms that it names"
	}
	switch n := event.calls(); {
	case event.source == auditlog.SourceDedupe:
	case a.lacksCalls(h, row, event):
	case searched && !ok && !row.fanned() && len(row.calls) >= n:
		from := "from the journal"
		if event.source != auditlog.SourceJournal {
			from = "by a batch"
		}
		a.violate(violationTokens, h.Seq, "row %d was answered %s, and no %d calls of a process add up to its row event: %s, %d capacity retries",
			h.Seq, from, n, "tokens "+event.usage.Tokens(), event.capacity)
	case len(calls) > n:
		a.violate(violationCallEvent, h.Seq,
			"row %d has %d call events of %s, its row event counts %d calls", h.Seq, len(calls),
			owners, n)
	case len(calls) < n:
		a.violate(violationNoCallEvent, h.Seq,
			"row %d has %d call events of %s, its row event counts %d calls%s", h.Seq, len(calls),
			owners, n, holeText(calls, event.term))
	case !ok:
		a.violate(violationNoCallEvent, h.Seq,
			"row %d has call events of %s that are not numbered from 0%s", h.Seq, event.term.owner,
			holeText(calls, event.term))
	default:
		a.checkSums(h, event, calls)
		a.checkCalls(h, row, event, calls)
	}
}

// checkSums compares the sums of a row's calls with its row event.
func (a *auditor) checkSums(h *verifiedRow, event *rowFacts, calls []callFacts) {
	capacity, usage := sumsOf(calls)
	if capacity != event.capacity {
		a.violate(violationRetries, h.Seq,
			"row %d has %d capacity retries in the call events, %d in the row event", h.Seq,
			capacity, event.capacity)
	}
	if d := compareUsage(usage, event.usage); d != nil {
		a.violate(d.kind, h.Seq, "row %d: %s in the row event", h.Seq, d.text)
	}
}

// holeText names the first call of a term that is missing or there more than once.
func holeText(calls []callFacts, term *auditTerm) string {
	n, times := hole(slices.DeleteFunc(slices.Clone(calls), func(c callFacts) bool { return c.term != term }))
	if times > 0 {
		return fmt.Sprintf(", call %d is there %d times", n, times)
	}
	return fmt.Sprintf(", call %d is missing", n)
}

// checkCalls compares the calls that a row event counts with its hash of them. A row event
// of an earlier version, or about a reply that such a version has kept, has none.
func (a *auditor) checkCalls(h *verifiedRow, row *rowAudit, event *rowFacts, calls []callFacts) {
	if event.callsHash == "" {
		return
	}
	hash := hashOfCalls(calls)
	if row.fanned() {
		hash = row.hashOfItems(event)
	}
	if hash.String() != event.callsHash {
		a.violate(violationEvent, h.Seq,
			"row %d: its call events are not those that its row event counts (calls_hash): "+
				"one was altered",
			h.Seq)
	}
}
