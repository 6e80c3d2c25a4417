package verify

import (
	"fmt"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/seqset"
	"github.com/llm-stage/stage/internal/stored"
)

// partitionSources is where the streams of a partition come from. Each is read once, in order, and ends with nil or 0.
type partitionSources struct {
	results func() (*stored.ResultRow, error)
	// input returns the sequences of the rows that are still there; nil where nothing can be said about the rows.
	input  func() (uint64, error)
	claims []stored.Claim
}

// partitionVerifier joins the streams of one partition: results and input row by row, and the audit events as they come.
// What it holds is bounded by the stage's window, but for sets of sequences (see [seqset.Set]).
type partitionVerifier struct {
	partitionSources
	report *Report
	stats  verifiedPartition
	runs   *runVerifier

	name, stream string // of the stage, and its input stream
	epochs       int    // input streams that the claims tell of; the last is the present one
	inputLast    uint64 // rows above never existed
	bound        uint64 // rows above are pending
	logEnd       uint64 // last message of the log; 0: there is none
	resultsGone  bool   // messages of the results stream were removed
	purged       bool   // the log does not begin at its beginning
	base         uint64 // the results up to this row, of this epoch, were removed
	// auditGone says from when on all events are there, zero: all are. Those of results before auditExpired can have expired.
	auditGone, auditExpired time.Time

	terms     map[string]*auditTerm
	window    auditWindow
	nextClaim int
	epoch     int
	owner     string     // of the last claim
	last      uint64     // highest row that has a result, in this epoch
	mark      uint64     // row of the last result, as claims count
	seen      seqset.Set // rows that have a result, in this epoch
	missing   seqset.Set // rows of the input that were passed by without a result
	taken     seqset.Set // rows that the audit tells of, passed by without a result
	nextInput uint64
	head      *verifiedRow
	used      uint64 // calls that the results were made of
	over      bool   // all results are read
	retired   func()
}

// verifiedRow is a result on its way through the check.
type verifiedRow struct {
	*stored.ResultRow
	key     rowKey
	term    *auditTerm
	late    bool // it came after the result of a later row
	inInput bool
}

// start makes the terms of the claims and reads the first row of the input.
func (v *partitionVerifier) start() (err error) {
	v.terms = make(map[string]*auditTerm)
	epoch := 0
	for i, c := range v.claims {
		if i > 0 && !c.SameInput(v.claims[i-1]) {
			epoch++
		}
		v.terms[c.Owner] = &auditTerm{owner: c.Owner, epoch: epoch, since: c.Stored}
	}
	v.epochs = epoch + 1
	v.stats.Claims = len(v.claims)
	if v.input != nil {
		v.nextInput, err = v.input()
	}
	return err
}

// term returns the term of an owner. One without a claim belongs to the newest input: the log was purged.
func (v *partitionVerifier) term(owner string) *auditTerm {
	t := v.terms[owner]
	if t == nil {
		t = &auditTerm{owner: strings.Clone(owner), epoch: v.epochs - 1}
		v.terms[owner] = t
	}
	return t
}

// event takes an event of the audit.
func (v *partitionVerifier) event(e *auditlog.Event) error {
	var key rowKey
	var term *auditTerm
	switch {
	case e.Call != nil:
		term = v.term(e.Call.Owner)
		key = rowKey{term.epoch, e.Call.Sequence}
	default:
		term = v.term(e.Row.Owner)
		key = rowKey{term.epoch, e.Row.Sequence}
	}
	if v.head == nil {
		if err := v.advance(false); err != nil {
			return err
		}
	}
	if v.over {
		return nil // of a row that is pending
	}
	ahead := v.head.key.compare(key) <= 0
	if !ahead && (key.epoch != v.epoch || v.seen.Has(key.seq)) {
		return nil // of a term that ended before the row's result
	}
	row := v.window.add(key, ahead)
	if !ahead {
		v.Skip(key)
	}
	switch {
	case e.Call != nil:
		row.addCall(callFacts{
			term: term, run: e.RunID, index: e.Call.CallIndex, at: e.Time,
			capacity: e.Call.Status == auditlog.CallCapacityRetry, usage: e.Call.Usage, unpriced: e.Call.Unpriced(),
		})
	default:
		row.addRow(rowFacts{
			term: term, run: e.RunID, at: e.Time, status: e.Row.Status, source: e.Row.Source,
			attempts: e.Row.Attempts, capacity: e.Row.CapacityRetries, usage: e.Row.Usage, queued: e.Row.QueuedAt, started: e.Row.StartedAt,
		})
	}
	if key == v.head.key || v.window.full() {
		return v.advance(false)
	}
	return nil
}

// advance goes on to the next result as long as the present one is settled; force settles what can't be settled.
func (v *partitionVerifier) advance(force bool) error {
	for !v.over {
		if v.head == nil {
			if err := v.Read(); err != nil {
				return err
			}
			continue
		}
		if !force && !v.settled() {
			return nil
		}
		v.retire()
		v.head = nil
		if v.retired != nil {
			v.retired()
		}
	}
	return nil
}

// settled tells whether nothing more of the head's audit needs to be waited for.
func (v *partitionVerifier) settled() bool {
	if v.head.late || v.window.full() {
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

// Skip notes that the audit tells of a row that has no result yet although a later one has.
func (v *partitionVerifier) Skip(key rowKey) {
	if key.epoch == v.epochs-1 && key.epoch == v.epoch && !v.seen.Has(key.seq) {
		v.taken.Add(key.seq)
	}
}

// retire checks the head against its audit and lets go of it.
func (v *partitionVerifier) retire() {
	h := v.head
	row := v.window.at(h.key)
	event := row.by(h.term)
	switch {
	case event == nil && h.late:
	case event == nil && v.unaudited(h, h.term.since, h.Stored):
	case event == nil:
		v.violate(violationNoRowEvent, h.Seq, "row %d has no row event of %s, the owner of its result", h.Seq, h.Owner)
		v.vouch(h)
	default:
		v.checkAudit(h, row, event)
	}
	v.window.pass(h.key, v.Skip)
}

// auditSlack is how far the clocks of stage and server may be apart.
const auditSlack = time.Minute

// vouch counts a result whose audit is there.
func (v *partitionVerifier) vouch(h *verifiedRow) {
	if h.inInput {
		v.stats.ByInput++
	} else {
		v.stats.ByAudit++
	}
}

// unaudited counts a result whose audit is missing, if the stream can have held it and does so no longer. The missing
// events were stored after since, the first of them before until.
func (v *partitionVerifier) unaudited(h *verifiedRow, since, until time.Time) bool {
	if v.auditGone.IsZero() || !since.Before(v.auditGone) {
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
	h.term.since = later(h.term.since, event.queued.Add(-auditSlack)) // later rows of the term were taken later
	if event.status != h.Status {
		v.violate(violationRowEvent, h.Seq, "row %d has a result with status %s and a row event with status %s", h.Seq, h.Status, event.status)
	}
	calls, ok := row.chosen(event)
	since, until := event.started.Add(-auditSlack), event.started
	if event.source == auditlog.SourceJournal {
		since, until = time.Time{}, h.Stored // of the earlier term that made the calls nothing is known
	}
	if !ok && v.unaudited(h, since, until) {
		return
	}
	v.vouch(h)
	v.used += uint64(len(calls))
	switch n := event.calls(); {
	case event.source == auditlog.SourceDedupe:
	case event.source == auditlog.SourceJournal && !ok && len(row.calls) >= n:
		v.violate(violationTokens, h.Seq, "row %d was answered from the journal, and no %d calls of an earlier term add up to its row event: %s, %d capacity retries",
			h.Seq, n, "tokens "+event.usage.Tokens(), event.capacity)
	case len(calls) > n:
		v.violate(violationCallEvent, h.Seq, "row %d has %d call events of %s, its row event counts %d calls", h.Seq, len(calls), event.term.owner, n)
	case len(calls) < n:
		v.violate(violationNoCallEvent, h.Seq, "row %d has %d call events of %s, its row event counts %d calls%s", h.Seq, len(calls), event.term.owner, n, holesText(calls))
	case !ok:
		v.violate(violationNoCallEvent, h.Seq, "row %d has call events of %s that are not numbered from 0%s", h.Seq, event.term.owner, holesText(calls))
	default:
		v.checkSums(h, event, calls)
	}
}

// checkSums compares what the calls of a row add up to with its row event.
func (v *partitionVerifier) checkSums(h *verifiedRow, event *rowFacts, calls []callFacts) {
	if got := capacityOf(calls); got != event.capacity {
		v.violate(violationRetries, h.Seq, "row %d has %d capacity retries in the call events, %d in the row event", h.Seq, got, event.capacity)
	}
	if d := usageDiffers(usageOf(calls), event.usage); d != nil {
		v.violate(d.kind, h.Seq, "row %d: %s in the row event", h.Seq, d.text)
	}
}

// holesText names the first number that is missing.
func holesText(calls []callFacts) string {
	have := make(map[int]int, len(calls))
	for i := range calls {
		have[calls[i].index]++
	}
	for i := range calls {
		if have[i] == 0 {
			return fmt.Sprintf(", call %d is missing", i)
		}
		if have[i] > 1 {
			return fmt.Sprintf(", call %d is there %d times", i, have[i])
		}
	}
	return fmt.Sprintf(", call %d is missing", len(calls))
}

func (v *partitionVerifier) violate(kind string, seq uint64, format string, args ...any) {
	v.report.violate(kind, v.stats.Partition, seq, format, args...)
}
