package verify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/seqset"
)

// partitionVerifier joins the streams of one partition: results and input row by row, and
// the audit events as they come.
//
//	log      1  2  3  4 | 5    6  7  8        the head is result 5
//	audit    events of 1 … 4, some of 5 and 7, and so on
//	         finished     head  ahead
//
// The audit drives it. Each event goes to its row in the window. Once the events of the
// head are complete, the head is checked and the next result is read. A head that lacks
// events is given up when the window is full, since a stage never has so many rows open.
//
// What it holds is bounded by the stage's window, but for sets of sequences (see
// [seqset.Set]). It belongs to the goroutine of [RunWith], as does all of the check.
type partitionVerifier struct {
	partitionSources
	partitionFacts
	bodies

	report  *Report // of the whole stage
	runs    *runVerifier
	objects *objectVerifier
	chain   chainVerifier
	stats   verifiedPartition

	// terms has the terms of ownership by owner: the terms of all claims from start on,
	// and one term, of the newest input stream, for each owner without a claim. Two
	// events are of one term exactly if they have the same pointer.
	terms map[string]*auditTerm

	// The log up to the head is read. Of the claims those before nextClaim lie in that
	// part, and have been checked.
	nextClaim int
	owner     string // of the last of them, or empty
	epoch     int    // the input stream of the head, counted from 0; below epochs
	purged    bool   // the log does not begin at its beginning: rows up to base are not expected to have a result
	epochRows
	order   logOrder // at the head
	changes []string // of the order
	// nextInput is the first row of the input that is not compared yet. Its sequence is 0
	// once all are. The input is the stream that the last claim names.
	nextInput stored.InputRow

	// The head is the result that is checked next: its place in the log is checked, its
	// audit is not. All results before it are finished. It is nil before the first is
	// read, and over says that no other follows.
	head *verifiedRow
	over bool
	// window holds the events of rows that are not finished: the head's, those ahead of
	// it, and some of rows passed by.
	window auditWindow
	used   uint64 // calls that the finished results were made of; each counts once
}

// partitionSources is where the streams of a partition come from. Each is read once, in
// order, and ends with nil or 0.
type partitionSources struct {
	results func() (*stored.ResultRow, error)
	// input returns the rows that are still there. The func itself is nil if nothing is
	// known about the rows.
	input func() (stored.InputRow, error)
	rows  *stored.Reader // behind input, or nil if the input allows no second reader
	// object reads the object that a result names in place of a body.
	object func(*objects.Ref) ([]byte, error)
	// original returns a row of the input, of any partition, or nil if the row is gone.
	// The func itself is nil if there is no input.
	original func(seq uint64) (*stored.InputRow, error)
	claims   []stored.Claim
}

// partitionFacts is what is known before the first result is read, and does not change.
type partitionFacts struct {
	name, stream string // of the stage, and its input stream
	epochs       int    // input streams that the claims name, at least 1; the last is the one that is there now
	inputLast    uint64 // rows above never existed
	bound        uint64 // rows above are pending
	logEnd       uint64 // last message of the log, or 0
	resultsGone  bool   // messages of the results stream were removed
	// anchor is where the log goes on behind dropped results, or nil if none were dropped.
	anchor *anchor
	// recorded is the end of results whose drop is recorded and not purged yet, or nil.
	recorded *anchor
	// auditGone is until when events may be missing, or zero if none is.
	auditGone time.Time
	// auditExpired is until when results were stored whose events can have expired.
	auditExpired time.Time
	// auditGoneByItself is auditGone without what only a person can have removed. It is
	// for results that name their row event: what was removed of theirs is missed.
	auditGoneByItself time.Time
}

// epochRows is how far the check has come in the rows of one input stream. Another one
// begins with the zero value.
type epochRows struct {
	// base <= last: results up to base were removed. A result below last is out of order.
	base, last uint64
	mark       uint64 // row of the last result or claim, as the next claim must name it; last, if all are in order
	// Each row of the input below nextInput is either in seen or in missing. A row in
	// audited has events, and may be in missing as well or get its result later, out of
	// order.
	seen    seqset.Set // rows with a result
	missing seqset.Set // rows of the input that were passed by without a result
	audited seqset.Set // rows of the audit that were passed by without a result
	failed  seqset.Set // rows whose last result so far is an error; for a replacement, the row that it replaces
	// Where results are not in stream order, mark is the low-water mark, last the latest
	// row that has a result, and rows above the mark are in ahead instead of missing. Of
	// those, pendingAhead have no result in the end.
	ahead        progress
	pendingAhead uint64
}

// auditSlack is how far the clocks of stage and server may be apart. Events carry the time
// of the stage, and what a stream has lost is known by the time of the server.
const auditSlack = time.Minute

// verifiedRow is a result on its way through the check.
type verifiedRow struct {
	*stored.ResultRow
	key     rowKey
	term    *auditTerm // of its owner
	late    bool       // it came after the result of a later row, so its events may have been dropped
	inInput bool       // the input still has its row
	// source is its row as the input has it, and made is the row as the result shows it.
	// Either is nil if it is not known or no bodies are read.
	source *source
	made   *made
	// sha is the SHA-256 of its body in hexadecimal, or empty if the body was not read.
	sha   string
	items int // elements of the array of its row, or -1 if unknown
	// event is the name of its row event (see [proof.EventName]), or empty if the result
	// names none.
	event  string
	erased bool // its tombstone stands for it
}

// start makes the terms of the claims and reads the first row of the input.
func (v *partitionVerifier) start() (err error) {
	v.chain.facts, v.chain.report, v.chain.stats = &v.partitionFacts, v.report, &v.stats
	v.terms = make(map[string]*auditTerm)
	v.order.Order = streams.OrderStream
	epoch := 0
	for i, c := range v.claims {
		if i > 0 && !c.SameInput(v.claims[i-1]) {
			epoch++
		}
		if v.terms[c.Owner] == nil { // an owner may claim more than once, see claimAhead
			v.terms[c.Owner] = &auditTerm{owner: c.Owner, epoch: epoch, since: c.Stored, number: len(v.terms)}
		}
	}
	v.epochs = epoch + 1
	v.stats.Claims = len(v.terms)
	if v.input != nil {
		v.nextInput, err = v.input()
	}
	return err
}

// term returns the term of an owner. One without a claim is of the newest input: the log
// was purged.
func (v *partitionVerifier) term(owner string) *auditTerm {
	t := v.terms[owner]
	if t == nil {
		t = &auditTerm{owner: strings.Clone(owner), epoch: v.epochs - 1, number: len(v.terms)}
		v.terms[owner] = t
	}
	return t
}

// event takes an event of the audit, and its hash as it was recorded.
func (v *partitionVerifier) event(e *auditlog.Event, hash proof.Hash) error {
	term, key := v.rowOf(e)
	if term.since.IsZero() {
		v.runs.unclaimed(processOf(term.owner))
	}
	if v.head == nil {
		if err := v.advance(false); err != nil {
			return err
		}
	}
	if v.over {
		return nil // of a pending row
	}
	ahead := v.expected(key)
	if !ahead && (key.epoch != v.epoch || v.seen.Has(key.seq)) {
		return nil // of a term that ended before the row's result
	}

	row := v.window.add(key, ahead)
	if !ahead {
		v.skip(key)
	}
	row.add(e, term, hash)
	if key == v.head.key || v.window.full() {
		return v.advance(false)
	}
	return nil
}

// expected reports whether a row may have its result at the head or later, as far as the
// log is read.
func (v *partitionVerifier) expected(key rowKey) bool {
	if v.order.ofStream() || key.epoch != v.epoch {
		return v.head.key.compare(key) <= 0
	}
	return key == v.head.key || key.seq > v.ahead.low && !v.seen.Has(key.seq)
}

// passed returns the row up to which all have their results once the head is stored.
func (v *partitionVerifier) passed() rowKey {
	if v.order.ofStream() {
		return v.head.key
	}
	return rowKey{v.epoch, v.ahead.low}
}

// rowOf returns the row that an event is about, and the term that it is of.
func (v *partitionVerifier) rowOf(e *auditlog.Event) (*auditTerm, rowKey) {
	if e.Call != nil {
		term := v.term(e.Call.Owner)
		return term, rowKey{term.epoch, e.Call.Sequence}
	}
	term := v.term(e.Row.Owner)
	return term, rowKey{term.epoch, e.Row.Sequence}
}

// advance finishes results as long as their events are complete; with force also those
// whose events are not.
func (v *partitionVerifier) advance(force bool) error {
	for !v.over {
		if v.head == nil {
			if err := v.read(); err != nil {
				return err
			}
			continue
		}
		if !force && !v.complete() {
			return nil
		}
		v.finishHead()
		v.head = nil
	}
	return nil
}

// complete reports whether no further event of the head is expected.
func (v *partitionVerifier) complete() bool {
	if v.head.late || v.head.erased || v.window.full() {
		return true
	}
	row := v.window.at(v.head.key)
	event := row.by(v.head.term)
	if event == nil {
		return false
	}
	_, ok := row.chosen(event)
	return ok
}

// skip notes a row that is in the audit and has no result yet, although a later row has
// one.
func (v *partitionVerifier) skip(key rowKey) {
	if key.epoch == v.epochs-1 && key.epoch == v.epoch && !v.seen.Has(key.seq) {
		v.audited.Add(key.seq)
	}
}

// finishHead checks the head against its audit, and then forgets the row.
func (v *partitionVerifier) finishHead() {
	h := v.head
	row := v.window.at(h.key)
	event := row.by(h.term)
	switch {
	case h.erased:
	case event == nil && h.late:
	case event == nil && v.countUnaudited(h, h.term.since, h.Stored):
	case event == nil:
		v.violate(violationNoRowEvent, h.Seq,
			"row %d has no row event of %s, the owner of its result", h.Seq, h.Owner)
		v.countAudited(h)
	default:
		v.checkAudit(h, row, event)
	}
	v.window.pass(h.key, v.passed(), v.skip)
}

// countAudited counts a result whose audit is there.
func (v *partitionVerifier) countAudited(h *verifiedRow) {
	if h.inInput {
		v.stats.ByInput++
	} else {
		v.stats.ByAudit++
	}
}

// countUnaudited counts a result whose audit is missing because the stream has lost it,
// and reports whether that is possible. The missing events were stored after since, the
// first of them before until.
//
// A log that has lost results does not show whether the audit stream was created again
// while the stage ran. Then an event may be gone if the first one of its process is
// missing, its start.
func (v *partitionVerifier) countUnaudited(h *verifiedRow, since, until time.Time) bool {
	gone := v.auditGone
	if h.event != "" {
		gone = v.auditGoneByItself
	}
	whole := gone.IsZero() && (!v.resultsGone || v.runs.started(h.Owner))
	if whole || !gone.IsZero() && !since.Before(gone) {
		return false
	}
	if !h.inInput {
		v.stats.Unknown++
		return true
	}
	v.stats.ByInput++
	if until.Before(v.auditExpired) {
		v.stats.AuditExpired++
	} else {
		v.stats.AuditGone++
	}
	return true
}

// checkAudit compares a result with its row event, and that with the call events.
func (v *partitionVerifier) checkAudit(h *verifiedRow, row *rowAudit, event *rowFacts) {
	if h.key.compare(v.passed()) <= 0 { // later rows of the term were taken later
		h.term.since = later(h.term.since, event.queued.Add(-auditSlack))
	}
	if v.order.Order == streams.OrderKey && h.Key != nil && event.key != nil && streams.KeyHeader(*event.key) != *h.Key {
		v.violate(violationRowEvent, h.Seq,
			"row %d has a result with key %q and a row event with key %q", h.Seq, *h.Key,
			*event.key)
	}
	if event.status != h.Status {
		v.violate(violationRowEvent, h.Seq,
			"row %d has a result with status %s and a row event with status %s", h.Seq, h.Status,
			event.status)
	}
	if h.sha != "" && event.result != "" && event.result != h.sha {
		v.violate(violationRowEvent, h.Seq,
			"row %d has another result than that of its row event: the SHA-256 of its body is "+
				"%s, not %s",
			h.Seq, h.sha, event.result)
	}
	if h.event != "" && proof.EventName(event.hash) != h.event {
		v.violate(violationEvent, h.Seq,
			"row %d has another row event of %s than the one that its result names (%s): it "+
				"was altered",
			h.Seq, h.Owner, proof.HeaderEvent)
	}
	v.checkVariables(h, event)
	v.checkPassed(h, event)

	calls, ok := row.chosen(event)
	since, until := event.started.Add(-auditSlack), event.started
	v.checkElements(h, row)
	searched := event.source == auditlog.SourceJournal || row.laned() || row.fanned()
	if searched {
		since, until = time.Time{}, h.Stored // when the earlier term made the calls is unknown
	}
	if !ok && v.countUnaudited(h, since, until) {
		return
	}
	v.countAudited(h)
	v.used += uint64(len(calls))

	owners := event.term.owner
	if len(event.earlier) > 0 {
		owners += " and the earlier terms that it names"
	}
	switch n := event.calls(); {
	case event.source == auditlog.SourceDedupe:
	case v.lacksCalls(h, row, event):
	case searched && !ok && !row.fanned() && len(row.calls) >= n:
		from := "from the journal"
		if event.source != auditlog.SourceJournal {
			from = "by a batch"
		}
		v.violate(violationTokens, h.Seq, "row %d was answered %s, and no %d calls of a process add up to its row event: %s, %d capacity retries",
			h.Seq, from, n, "tokens "+event.usage.Tokens(), event.capacity)
	case len(calls) > n:
		v.violate(violationCallEvent, h.Seq,
			"row %d has %d call events of %s, its row event counts %d calls", h.Seq, len(calls),
			owners, n)
	case len(calls) < n:
		v.violate(violationNoCallEvent, h.Seq,
			"row %d has %d call events of %s, its row event counts %d calls%s", h.Seq, len(calls),
			owners, n, holeText(calls, event.term))
	case !ok:
		v.violate(violationNoCallEvent, h.Seq,
			"row %d has call events of %s that are not numbered from 0%s", h.Seq, event.term.owner,
			holeText(calls, event.term))
	default:
		v.checkSums(h, event, calls)
		v.checkCalls(h, row, event, calls)
	}
}

// checkSums compares the sums of a row's calls with its row event.
func (v *partitionVerifier) checkSums(h *verifiedRow, event *rowFacts, calls []callFacts) {
	capacity, usage := sumsOf(calls)
	if capacity != event.capacity {
		v.violate(violationRetries, h.Seq,
			"row %d has %d capacity retries in the call events, %d in the row event", h.Seq,
			capacity, event.capacity)
	}
	if d := compareUsage(usage, event.usage); d != nil {
		v.violate(d.kind, h.Seq, "row %d: %s in the row event", h.Seq, d.text)
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

// violate notes a violation of this partition; seq is 0 if no single row is concerned.
func (v *partitionVerifier) violate(kind violationKind, seq uint64, format string, args ...any) {
	v.report.violate(kind, v.stats.Partition, seq, format, args...)
}
