package verify

import (
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// partitionVerifier joins the log of one partition with the audit, whose events come to it.
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
	findings
	log   logVerifier
	links linkVerifier
	audit auditor
	terms auditTerms

	// The head is the result that is checked next: its place in the log is checked, its
	// audit is not. All results before it are finished. It is nil before the first is
	// read, and over says that no other follows.
	head *verifiedRow
	over bool
	// window holds the events of rows that are not finished: the head's, those ahead of
	// it, and some of rows passed by.
	window auditWindow
}

// newPartitionVerifier returns a verifier whose window has so many rows. Its log is empty
// until the caller has set results, claims and what is known of it.
func newPartitionVerifier(report *Report, runs *runVerifier, number, window int) *partitionVerifier {
	v := &partitionVerifier{
		findings: findings{report: report, stats: verifiedPartition{Partition: number}},
		window:   newAuditWindow(window),
	}
	v.log = logVerifier{
		findings: &v.findings, bodies: &v.links.bodies, runs: runs,
		results: func() (*stored.ResultRow, error) { return nil, nil }, //nolint:nilnil // the end
	}
	v.links = linkVerifier{findings: &v.findings}
	v.audit = auditor{findings: &v.findings, log: &v.log, links: &v.links, runs: runs}
	return v
}

// start makes the terms of the claims and reads the first row of the input.
func (v *partitionVerifier) start() error {
	v.terms = termsOf(v.log.claims)
	v.log.epochs = v.terms.epochs
	v.stats.Claims = len(v.terms.byOwner)
	return v.log.begin()
}

// event takes an event of the audit, and its hash as it was recorded.
func (v *partitionVerifier) event(e *auditlog.Event, hash proof.Hash) error {
	term, key := v.terms.rowOf(e)
	if term.since.IsZero() {
		v.log.runs.unclaimed(processOf(term.owner))
	}
	if v.head == nil {
		if err := v.advance(false); err != nil {
			return err
		}
	}
	if v.over {
		return nil // of a pending row
	}
	ahead := v.log.mayCome(key, v.head.key)
	if !ahead && (key.epoch != v.log.epoch || v.log.seen.Has(key.seq)) {
		return nil // of a term that ended before the row's result
	}

	row := v.window.add(key, ahead)
	if !ahead {
		v.log.skip(key)
	}
	row.add(e, term, hash)
	if key == v.head.key || v.window.full() {
		return v.advance(false)
	}
	return nil
}

// advance finishes results as long as their events are complete. With force it also
// finishes results whose events are not.
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
	}
	return nil
}

// read takes the next result of the log as the head. A result that doubles another or names
// no row is reported and skipped.
func (v *partitionVerifier) read() error {
	h, err := v.log.next()
	if err != nil {
		return err
	}
	if h == nil {
		v.over = true
		return nil
	}
	if h.Seq == 0 {
		return nil
	}
	h.term = v.terms.of(h.Owner)
	if err := v.links.readBody(h); err != nil {
		return err
	}
	h.Body = nil // it may wait for its events
	if ok, err := v.log.place(h); err != nil || !ok {
		return err
	}
	v.head = h
	return v.links.check(h)
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

// finishHead checks the head against its audit, and then forgets the row.
func (v *partitionVerifier) finishHead() {
	h := v.head
	v.audit.row(h, v.window.at(h.key))
	v.window.pass(h.key, v.log.passed(h.key), v.log.skip)
	v.head = nil
}

// finish completes the checks after the end of the audit.
func (v *partitionVerifier) finish() error {
	if err := v.advance(true); err != nil {
		return err
	}
	return v.log.finish()
}
