package app

import (
	"math"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// read takes the next result of the log as the head, and checks its place among the others. A result that is wrong in
// itself is reported and passed over.
func (v *partitionVerifier) read() error {
	r, err := v.results()
	if err != nil {
		return err
	}
	if r == nil {
		v.over = true
		return nil
	}
	v.claimsBefore(r.at)
	v.stats.Results++
	switch r.status {
	case auditlog.RowSuccess:
		v.stats.Succeeded++
	case auditlog.RowError:
		v.stats.Failed++
	}
	v.runs.result(r)
	if fault := v.faultOf(r); fault != "" {
		v.violate(violationResult, r.seq, "message %d of the results: %s", r.at, fault)
	}
	if r.seq == 0 {
		return nil
	}
	term := v.term(r.owner)
	if v.owner != "" && r.owner != v.owner {
		v.violate(violationClaim, r.seq, "the result of row %d is of %s, after the claim of %s: a fenced owner has appended it", r.seq, r.owner, v.owner)
	}
	switch begins := v.owner == "" && v.last == 0; {
	case begins && v.resultsGone:
		v.purged, v.base = true, r.seq-1
	case begins:
		v.violate(violationClaim, r.seq, "the log begins with the result of row %d, at %d of the results stream, without a claim before it", r.seq, r.at)
	}
	h := &verifiedRow{resultRow: r, key: rowKey{v.epoch, r.seq}, term: term, paced: v.paced(r.stored)}
	v.mark = r.seq
	switch {
	case !v.seen.add(r.seq):
		v.violate(violationDoubled, r.seq, "row %d has another result at %d of the results stream", r.seq, r.at)
		return nil
	case r.seq < v.last:
		h.late, h.inInput = true, v.missing.remove(r.seq)
		v.violate(violationDisorder, r.seq, "the result of row %d, at %d of the results stream, comes after that of row %d", r.seq, r.at, v.last)
	default:
		v.last = r.seq
		if err = v.inputUpTo(h); err != nil {
			return err
		}
	}
	v.head = h
	return nil
}

// paced adds when a result was stored, and returns when that of a window of rows before it was. Zero: there is none.
func (v *partitionVerifier) paced(stored time.Time) (before time.Time) {
	if len(v.pace) < v.window.limit {
		v.pace = append(v.pace, stored)
		return before
	}
	i := (v.stats.Results - 1) % len(v.pace)
	before, v.pace[i] = v.pace[i], stored
	return before
}

// faultOf says what is wrong with a result's own words; empty: nothing.
func (v *partitionVerifier) faultOf(r *resultRow) string {
	here := v.epoch == v.epochs-1
	switch {
	case r.seq == 0:
		return "it does not say which row it is the result of"
	case r.status != auditlog.RowSuccess && r.status != auditlog.RowError:
		return "its status is " + quoted(r.status) + ", neither success nor error"
	case here && r.source != v.stream:
		return "it is about stream " + quoted(r.source) + ", the input is " + v.stream
	case r.stateID != auditlog.StateID(v.name, r.source, auditlog.Partition(v.stats.Partition), r.seq):
		return "its state id " + quoted(r.stateID) + " is that of another row"
	case here && r.seq > v.inputLast:
		return "it is about a row that the input never had"
	}
	return ""
}

func quoted(s string) string { return `"` + s + `"` }

// inputUpTo reads the input up to the row of a result and notes those before it: they have no result.
func (v *partitionVerifier) inputUpTo(h *verifiedRow) error {
	if v.epoch != v.epochs-1 || v.input == nil {
		return nil
	}
	return v.rowsUpTo(h.seq, func(row inputRow) {
		if row.seq == h.seq {
			h.inInput, h.queued = true, row.stored
		} else {
			v.missing.add(row.seq)
		}
	})
}

// rowsUpTo reads the input up to a row.
func (v *partitionVerifier) rowsUpTo(seq uint64, each func(inputRow)) (err error) {
	for v.nextInput.seq != 0 && v.nextInput.seq <= seq && err == nil {
		each(v.nextInput)
		v.nextInput, err = v.input()
	}
	return err
}

// claimsBefore checks the claims that lie in the log before a message.
func (v *partitionVerifier) claimsBefore(at uint64) {
	for v.nextClaim < len(v.claims) && v.claims[v.nextClaim].at < at {
		c := v.claims[v.nextClaim]
		switch first := v.nextClaim == 0; {
		case !first && !c.sameInput(v.claims[v.nextClaim-1]):
			v.newEpoch()
		case first && v.last == 0 && c.mark > 0 && v.resultsGone:
			v.purged, v.base, v.mark = true, c.mark, c.mark
		case first && v.purged && c.mark == 0: // the results before it are of another input
			v.restart()
		}
		if c.mark != v.mark {
			v.violate(violationClaim, c.mark, "the claim at %d of the results stream, of %s, says that row %d was the last before it; it was row %d", c.at, c.owner, c.mark, v.mark)
		}
		v.owner = c.owner
		v.nextClaim++
	}
}

// newEpoch begins to count from the beginning of another input stream.
func (v *partitionVerifier) newEpoch() {
	v.epoch++
	v.restart()
}

func (v *partitionVerifier) restart() {
	v.last, v.mark, v.base = 0, 0, 0
	v.seen, v.missing, v.taken = seqSet{}, seqSet{}, seqSet{}
}

// finish settles what is left when the audit is read, and reports the rows without a result.
func (v *partitionVerifier) finish() (err error) {
	if err := v.advance(true); err != nil {
		return err
	}
	v.claimsBefore(math.MaxUint64)
	v.stats.HighWaterMark = v.mark
	if v.input != nil {
		err = v.rowsUpTo(max(v.bound, v.last), func(row inputRow) {
			if !v.seen.has(row.seq) {
				v.missing.add(row.seq)
			}
		})
		if err != nil {
			return err
		}
	}
	for seq := range v.missing.all() {
		v.lost(seq, "row %d has no result")
	}
	for seq := range v.taken.all() {
		if !v.seen.has(seq) && !v.missing.has(seq) {
			v.lost(seq, "row %d has no result; the audit tells of it, the input has it no longer")
		}
	}
	return nil
}

// lost reports a row without a result, unless its result may have been removed with the beginning of the log.
func (v *partitionVerifier) lost(seq uint64, format string) {
	if seq <= v.base {
		v.stats.ResultsGone++
		return
	}
	v.violate(violationLost, seq, format, seq)
}
