package verify

import (
	"math"
	"strconv"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/seqset"
)

// logVerifier follows the log of one partition from its first message to its last, with the
// rows of the input beside it. It knows of each row so far whether it has a result, and in
// which order results may come. It reads no audit.
//
//	log    claim A   1   2   4   claim B   5
//	input            1   2   3   4         5      row 3 is missing
//
// keyed.go has the part of it for logs that are not in stream order.
type logVerifier struct {
	*findings
	logFacts

	results func() (*stored.ResultRow, error) // in the order of the log, and nil at its end
	claims  []stored.Claim
	input   inputRows
	bodies  *bodies // for what the rows of the input show
	runs    *runVerifier
	chain   chainVerifier

	// The claims before nextClaim have been checked: they are in the part of the log up to
	// the last result that was read.
	nextClaim int
	owner     string // of the last of them, or empty
	epoch     int    // the input stream of that result, counted from 0; below epochs
	// purged says that the beginning of the log is gone. Rows up to base are not expected
	// to have a result then.
	purged bool
	epochRows
	order   logOrder
	changes []string // of the order
}

// logFacts is what is known of a log before its first message is read. It does not change.
type logFacts struct {
	name, stream string // of the stage, and its input stream
	// epochs counts the input streams that the claims name, at least 1. The last is the one
	// that is there now.
	epochs      int
	bound       uint64 // rows above are pending
	logEnd      uint64 // last message of the log, or 0
	resultsGone bool   // messages of the results stream were removed
	// anchor is where the log goes on behind dropped results, or nil if none were dropped.
	anchor *anchor
	// recorded is the end of results whose drop is recorded and not purged yet, or nil.
	recorded *anchor
}

// inputRows reads the rows of the input of one partition, in order. The input is the stream
// that the last claim names. With the zero value nothing is known of the rows.
type inputRows struct {
	// read returns the next row that is still there. It is nil if nothing is known about
	// the rows.
	read   func() (stored.InputRow, error)
	reader *stored.Reader // behind read, or nil if the input allows no second reader
	last   uint64         // rows above never existed
	// next is the first row that is not compared yet. Its sequence is 0 once all are.
	next stored.InputRow
}

// begin reads the first row.
func (in *inputRows) begin() (err error) {
	if in.read != nil {
		in.next, err = in.read()
	}
	return err
}

// upTo calls f with each row up to a sequence that was not compared yet.
func (in *inputRows) upTo(seq uint64, f func(*stored.InputRow)) (err error) {
	for in.next.Seq != 0 && in.next.Seq <= seq && err == nil {
		f(&in.next)
		in.next, err = in.read()
	}
	return err
}

// epochRows is how far the check has come in the rows of one input stream. Another one
// begins with the zero value.
type epochRows struct {
	// base <= last: results up to base were removed. A result below last is out of order.
	base, last uint64
	// mark is the row of the last result or claim, which the next claim must name. If all
	// are in order it is last.
	mark uint64
	// Each row of the input that was compared is either in seen or in missing. A row in
	// audited has events, and may be in missing as well or get its result later, out of
	// order.
	seen    seqset.Set // rows with a result
	missing seqset.Set // rows of the input that were passed by without a result
	audited seqset.Set // rows of the audit that were passed by without a result
	// failed has the rows whose last result so far is an error. A replacement counts for
	// the row that it replaces.
	failed seqset.Set
	// Where results are not in stream order, mark is the low-water mark, last is the latest
	// row that has a result, and rows above the mark are in ahead instead of missing.
	// pendingAhead of these rows have no result in the end.
	ahead        progress
	pendingAhead uint64
}

// verifiedRow is a result on its way through the check.
type verifiedRow struct {
	*stored.ResultRow
	key  rowKey
	term *auditTerm // of its owner
	// late says that it came after the result of a later row. Its events may have been
	// dropped then.
	late    bool
	inInput bool // the input still has its row
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

// begin reads the first row of the input.
func (v *logVerifier) begin() error {
	v.order.Order = streams.OrderStream
	v.chain.findings, v.chain.facts = v.findings, &v.logFacts
	return v.input.begin()
}

// next returns the next result of the log, or nil at its end. The claims before it and the
// chain are checked, its place among the other results is not: see place.
func (v *logVerifier) next() (*verifiedRow, error) {
	r, err := v.results()
	if err != nil || r == nil {
		return nil, err
	}
	if err := v.claimsBefore(r.At); err != nil {
		return nil, err
	}
	h := &verifiedRow{ResultRow: r, key: rowKey{v.epoch, r.Seq}, items: -1, erased: r.Header == nil && v.chain.stones.at(r.At) != nil}
	if err := v.chain.result(h); err != nil {
		return nil, err
	}
	// The result counts as erased even if it is still there: an interrupted erasure has
	// already removed some of the events that it would be compared with.
	h.erased = v.chain.stones.at(r.At) != nil
	v.inferOrder(r)
	v.count(r)
	if problem := v.problemOf(r); problem != "" {
		v.violate(violationResult, r.Seq, "message %d of the results: %s", r.At, problem)
	}
	if r.Seq > 0 {
		v.checkOwner(r)
		v.checkReplacement(r)
	}
	return h, nil
}

// place checks the place of a result among the others, and reads the input up to its row.
// It reports false for a result that doubles another.
func (v *logVerifier) place(h *verifiedRow) (ok bool, err error) {
	if v.order.ofStream() {
		v.mark = h.Seq
	}
	switch {
	case !v.seen.Add(h.Seq):
		v.violate(violationDoubled, h.Seq,
			"row %d has another result at %d of the results stream", h.Seq, h.At)
		return false, nil
	case !v.order.ofStream():
		err = v.readAhead(h)
	case h.Seq < v.last:
		h.late, h.inInput = true, v.missing.Remove(h.Seq)
		v.violate(violationDisorder, h.Seq,
			"the result of row %d, at %d of the results stream, comes after that of row %d", h.Seq,
			h.At, v.last)
	default:
		v.last = h.Seq
		h.inInput, h.source, err = v.inputUpTo(h.Seq)
	}
	return err == nil, err
}

// count counts a result.
func (v *logVerifier) count(r *stored.ResultRow) {
	v.stats.Results++
	switch r.Status {
	case auditlog.RowSuccess:
		v.stats.Succeeded++
	case auditlog.RowError:
		v.stats.Failed++
	}
	v.runs.result(r)
}

// checkOwner compares the owner of a result with the last claim before it.
func (v *logVerifier) checkOwner(r *stored.ResultRow) {
	if v.owner != "" && r.Owner != v.owner {
		v.violate(violationClaim, r.Seq,
			"the result of row %d is of %s, after the claim of %s: a fenced owner has "+
				"appended it",
			r.Seq, r.Owner, v.owner)
	}
	switch begins := v.owner == "" && v.last == 0; {
	case begins && v.resultsGone:
		v.purged, v.base = true, r.Seq-1
	case begins:
		v.violate(violationClaim, r.Seq,
			"the log begins with the result of row %d, at %d of the results stream, without a "+
				"claim before it",
			r.Seq, r.At)
	}
}

// checkReplacement checks that a result which takes the place of another one follows an
// error there, and notes how the row of that place stands.
func (v *logVerifier) checkReplacement(r *stored.ResultRow) {
	place := r.Seq
	if r.Replaces != "" {
		v.stats.Replacements++
		var err error
		place, err = strconv.ParseUint(r.Replaces, 10, 64)
		switch {
		case err != nil || place == 0:
			v.violate(violationReplacement, r.Seq,
				"the result of row %d, at %d of the results stream, takes the place of row "+
					"%q, which is no number of a row",
				r.Seq, r.At, r.Replaces)
			return
		case place <= v.base, v.ahead.purged > 0 && !v.seen.Has(place): // its own result is gone
		case !v.seen.Has(place):
			v.violate(violationReplacement, r.Seq,
				"the result of row %d, at %d of the results stream, takes the place of row "+
					"%d, which has no result before it",
				r.Seq, r.At, place)
			return
		case !v.failed.Has(place):
			v.violate(violationReplacement, r.Seq,
				"the result of row %d, at %d of the results stream, takes the place of row "+
					"%d, which had not failed",
				r.Seq, r.At, place)
		}
	}
	if r.Status == auditlog.RowError {
		v.failed.Add(place)
	} else {
		v.failed.Remove(place)
	}
}

// problemOf checks a result on its own and describes the first problem. It returns "" if
// there is none.
func (v *logVerifier) problemOf(r *stored.ResultRow) string {
	here := v.epoch == v.epochs-1
	switch {
	case r.Seq == 0:
		return "it does not name its row"
	case r.Status != auditlog.RowSuccess && r.Status != auditlog.RowError:
		return "its status is " + strconv.Quote(r.Status) + ", neither success nor error"
	case here && r.Source != v.stream:
		return "it is about stream " + strconv.Quote(r.Source) + ", the input is " + v.stream
	case r.StateID != auditlog.StateID(v.name, r.Source, auditlog.Partition(v.stats.Partition), r.Seq):
		return "its state id " + strconv.Quote(r.StateID) + " is that of another row"
	case here && r.Seq > v.input.last:
		return "it is about a row that the input never had"
	}
	return ""
}

// present reports whether the rows of the log, as far as it is read, are those of the input
// that is there now.
func (v *logVerifier) present() bool { return v.epoch == v.epochs-1 && v.input.read != nil }

// inputUpTo reads the input up to a row and notes the rows without a result. It reports
// whether the row itself is there, and what it shows.
func (v *logVerifier) inputUpTo(seq uint64) (there bool, row *source, err error) {
	if !v.present() {
		return false, nil, nil
	}
	err = v.input.upTo(seq, func(in *stored.InputRow) {
		if there = in.Seq == seq; there {
			row = v.bodies.sourceOf(in)
		}
		if !v.seen.Has(in.Seq) {
			v.missing.Add(in.Seq)
		}
	})
	return there, row, err
}

// mayCome reports whether a row may have its result at the head or later, as far as the log
// is read.
func (v *logVerifier) mayCome(key, head rowKey) bool {
	if v.order.ofStream() || key.epoch != v.epoch {
		return head.compare(key) <= 0
	}
	return key == head || key.seq > v.ahead.low && !v.seen.Has(key.seq)
}

// passed returns the row up to which all have their results once the head is stored.
func (v *logVerifier) passed(head rowKey) rowKey {
	if v.order.ofStream() {
		return head
	}
	return rowKey{v.epoch, v.ahead.low}
}

// skip notes a row that is in the audit and has no result yet, although a later row has
// one.
func (v *logVerifier) skip(key rowKey) {
	if key.epoch == v.epochs-1 && key.epoch == v.epoch && !v.seen.Has(key.seq) {
		v.audited.Add(key.seq)
	}
}

// claimsBefore checks the claims that lie in the log before a message.
func (v *logVerifier) claimsBefore(at uint64) error {
	for v.nextClaim < len(v.claims) && v.claims[v.nextClaim].At < at {
		c := &v.claims[v.nextClaim]
		first := v.nextClaim == 0
		if err := v.chain.claim(c, first); err != nil {
			return err
		}
		switch {
		case !first && !c.SameInput(v.claims[v.nextClaim-1]):
			v.epoch++
			v.epochRows = epochRows{}
		case first && v.last == 0 && (c.Mark > 0 || c.Progress.Ahead > 0) && v.resultsGone:
			v.purged, v.base, v.mark = true, c.Mark, c.Mark
		case first && v.purged && c.Mark == 0: // the results before it are of another input
			v.epochRows = epochRows{}
		}
		v.claimOrder(c, first && v.last == 0)
		if first && v.purged && v.last == 0 {
			v.purgedAhead(c.Progress.Ahead)
		}
		if first && v.anchor != nil && v.order.ofStream() {
			v.last = v.base // no result behind it is of a row before
		}
		if !v.order.ofStream() {
			if err := v.claimAhead(c); err != nil {
				return err
			}
		} else if c.Mark != v.mark {
			v.violate(violationClaim, c.Mark,
				"the claim at %d of the results stream, of %s, names row %d as the last "+
					"before it; it was row %d",
				c.At, c.Owner, c.Mark, v.mark)
		}
		v.owner = c.Owner
		v.nextClaim++
	}
	return nil
}

// finish completes the checks behind the last result, and reports the rows without a result.
func (v *logVerifier) finish() error {
	if err := v.claimsBefore(math.MaxUint64); err != nil {
		return err
	}
	v.stats.HighWaterMark = v.mark
	v.chain.finish()
	if err := v.finishInput(); err != nil {
		return err
	}
	for _, change := range v.changes {
		v.report.note("partition %d: the order of the results changes %s", v.stats.Partition, change)
	}
	for seq := range v.missing.All() {
		v.lost(seq, "row %d has no result")
	}
	for seq := range v.audited.All() {
		if !v.seen.Has(seq) && !v.missing.Has(seq) {
			v.lost(seq, "row %d has no result; it is in the audit and no longer in the input")
		}
	}
	return nil
}

// finishInput reads the input up to the last row that may have a result.
func (v *logVerifier) finishInput() error {
	v.stats.Order, v.stats.OrderKey, v.stats.reordered = v.order.Order, v.order.key, len(v.changes) > 0
	if !v.order.ofStream() {
		return v.finishAhead()
	}
	_, _, err := v.inputUpTo(max(v.bound, v.last))
	return err
}

// lost reports a row without a result, unless its result may have been removed with the
// beginning of the log.
func (v *logVerifier) lost(seq uint64, format string) {
	if seq > v.base && v.ahead.purged > 0 { // of so many rows above it nobody knows which they are
		v.ahead.purged--
		v.stats.ResultsGone++
		return
	}
	if seq <= v.base {
		v.stats.ResultsGone++
		return
	}
	v.violate(violationLost, seq, format, seq)
}
