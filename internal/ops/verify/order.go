package verify

import (
	"math"
	"strconv"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// read takes the next result of the log as the head, and checks its place among the
// others. A result that doubles another or names no row is reported and skipped.
func (v *partitionVerifier) read() error {
	r, err := v.results()
	if err != nil {
		return err
	}
	if r == nil {
		v.over = true
		return nil
	}
	if err := v.claimsBefore(r.At); err != nil {
		return err
	}
	h := &verifiedRow{ResultRow: r, key: rowKey{v.epoch, r.Seq}, items: -1, erased: r.Header == nil && v.chain.stones.at(r.At) != nil}
	if err := v.chain.result(h); err != nil {
		return err
	}
	// Even if the result is still there: an interrupted erasure has already removed some of
	// the events that the result would be compared with.
	h.erased = v.chain.stones.at(r.At) != nil
	v.inferOrder(r)
	v.count(r)
	if problem := v.problemOf(r); problem != "" {
		v.violate(violationResult, r.Seq, "message %d of the results: %s", r.At, problem)
	}
	if r.Seq == 0 {
		return nil
	}
	v.checkOwner(r)
	v.checkReplacement(r)
	h.term = v.term(r.Owner)
	if err := v.readBody(h); err != nil {
		return err
	}
	r.Body = nil // it may wait for its events
	if v.order.ofStream() {
		v.mark = r.Seq
	}
	switch {
	case !v.seen.Add(r.Seq):
		v.violate(violationDoubled, r.Seq,
			"row %d has another result at %d of the results stream", r.Seq, r.At)
		return nil
	case !v.order.ofStream():
		if err := v.readAhead(h); err != nil {
			return err
		}
	case r.Seq < v.last:
		h.late, h.inInput = true, v.missing.Remove(r.Seq)
		v.violate(violationDisorder, r.Seq,
			"the result of row %d, at %d of the results stream, comes after that of row %d", r.Seq,
			r.At, v.last)
	default:
		v.last = r.Seq
		if h.inInput, h.source, err = v.inputUpTo(r.Seq); err != nil {
			return err
		}
	}
	v.head = h
	if h.erased {
		return nil
	}
	v.checkItems(h)
	return v.checkLink(h)
}

// count counts a result.
func (v *partitionVerifier) count(r *stored.ResultRow) {
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
func (v *partitionVerifier) checkOwner(r *stored.ResultRow) {
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
func (v *partitionVerifier) checkReplacement(r *stored.ResultRow) {
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

// problemOf checks a result on its own and describes the first problem, or returns empty.
func (v *partitionVerifier) problemOf(r *stored.ResultRow) string {
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
	case here && r.Seq > v.inputLast:
		return "it is about a row that the input never had"
	}
	return ""
}

// inputUpTo reads the input up to a row and notes the rows without a result. It reports
// whether the row itself is there, and what it shows.
func (v *partitionVerifier) inputUpTo(seq uint64) (there bool, row *source, err error) {
	if v.epoch != v.epochs-1 || v.input == nil {
		return false, nil, nil
	}
	for v.nextInput.Seq != 0 && v.nextInput.Seq <= seq && err == nil {
		if there = v.nextInput.Seq == seq; there {
			row = v.sourceOf(&v.nextInput)
		}
		if !v.seen.Has(v.nextInput.Seq) {
			v.missing.Add(v.nextInput.Seq)
		}
		v.nextInput, err = v.input()
	}
	return there, row, err
}

// claimsBefore checks the claims that lie in the log before a message.
func (v *partitionVerifier) claimsBefore(at uint64) error {
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

// finish completes the checks after the end of the audit, and reports the rows without a
// result.
func (v *partitionVerifier) finish() error {
	if err := v.advance(true); err != nil {
		return err
	}
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
func (v *partitionVerifier) finishInput() error {
	v.stats.Order, v.stats.OrderKey, v.stats.reordered = v.order.Order, v.order.key, len(v.changes) > 0
	if !v.order.ofStream() {
		return v.finishAhead()
	}
	_, _, err := v.inputUpTo(max(v.bound, v.last))
	return err
}

// lost reports a row without a result, unless its result may have been removed with the
// beginning of the log.
func (v *partitionVerifier) lost(seq uint64, format string) {
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
