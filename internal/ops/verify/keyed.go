package verify

import (
	"cmp"
	"fmt"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// logOrder is the order in which results are stored, as a claim names it.
type logOrder struct {
	streams.Order // never empty

	// key says where a row's key is. It is empty if the order is not by key, or if the
	// claim is gone.
	key string
}

func (o logOrder) String() string {
	if o.key == "" {
		return string(o.Order)
	}
	return fmt.Sprintf("%s (%s)", o.Order, o.key)
}

// ofStream reports whether the results are in stream order.
func (o logOrder) ofStream() bool { return o.Order == streams.OrderStream }

// orderOf returns the order that a claim names. problem is empty unless the claim
// contradicts itself.
func orderOf(c *stored.Claim) (o logOrder, problem string) {
	o = logOrder{Order: cmp.Or(c.Order, streams.OrderStream)}
	if c.Order == "" && c.Progress.Named {
		o.Order = streams.OrderNone
	}
	switch known := o.ofStream() || o.Order == streams.OrderKey || o.Order == streams.OrderNone; {
	case c.Version > claimVersionKnown: // that is reported
	case c.Version == claimVersionOrder && c.Order == "":
		problem = fmt.Sprintf("has format %d and names no order", c.Version)
	case !known:
		problem = fmt.Sprintf("names the order %q, which does not exist", o.Order)
		o.Order = streams.OrderNone
	case c.Version < claimVersionOrder && !o.ofStream():
		problem = fmt.Sprintf("names the order %s and has format %d, by which a stage that knows no order would lose rows", o.Order, c.Version)
	}
	if o.Order == streams.OrderKey {
		o.key = c.Key
		if o.key == "" && problem == "" {
			problem = "is of order key and does not name the key"
		}
	}
	return o, problem
}

// logMessage is a result or a claim of a log that is not in stream order, with what it
// says about rows that have their results.
type logMessage struct {
	at    uint64 // its place in the results stream
	row   uint64 // of the result
	owner string // of the claim, or empty for a result
	stored.Progress
}

func (m logMessage) String() string {
	if m.owner != "" {
		return fmt.Sprintf("the claim at %d of the results stream, of %s,", m.at, m.owner)
	}
	return fmt.Sprintf("the result of row %d, at %d of the results stream,", m.row, m.at)
}

// counted names what [streams.HeaderAhead] counts in such a message, for violations.
func (m logMessage) counted() string {
	return fmt.Sprintf("%v counts %d rows above row %d that have their result (%s)", m, m.Ahead, m.Low, streams.HeaderAhead)
}

// progress is the log's own account of the rows that have results, where results are not
// in stream order. It is part of epochRows and, like it, covers one input stream.
type progress struct {
	aheadRows

	named uint64 // the low-water mark of the last message that names one
	moved uint64 // the last message that moved the mark
	// unseen is how many rows above the mark have a result that is not in the log,
	// according to the log itself.
	unseen int
	since  logMessage // the message that last raised unseen, which a violation quotes
	// purged is how many rows above the first mark that is left had their results in the
	// part of the log that was purged. At most gone of these rows are above the present
	// mark.
	purged, gone int
}

// claimOrder checks the order that a claim names, and follows a change of it. first says
// that the log begins with the claim.
func (v *logVerifier) claimOrder(c *stored.Claim, first bool) {
	o, problem := orderOf(c)
	if problem != "" {
		v.violate(violationClaim, c.Mark,
			"the claim at %d of the results stream, of %s, %s", c.At, c.Owner, problem)
	}
	was := v.order
	v.order = o
	switch {
	case o == was, o.Order == was.Order && was.key == "": // the claim before it is gone
		return
	case first:
		v.beginAhead(v.mark, c.At)
		return
	}
	v.changes = append(v.changes, fmt.Sprintf("at %d of the results stream from %v to %v", c.At, was, o))
	if n := v.ahead.done; n > 0 {
		v.violate(violationClaim, c.Mark, "the claim at %d of the results stream, of %s, changes the order from %v to %v while %d rows above row %d have their result",
			c.At, c.Owner, was, o, n, v.ahead.low)
	}
	switch {
	case was.ofStream():
		v.beginAhead(v.mark, c.At)
	case o.ofStream():
		for r := range v.ahead.open {
			v.missing.Add(r.seq)
		}
		v.ahead = progress{}
	default:
		v.ahead.forgetKeys()
	}
}

// beginAhead begins a part of the log in another order than the stream's, where all rows up
// to low have their results.
func (v *logVerifier) beginAhead(low, at uint64) {
	v.ahead = progress{aheadRows: aheadRows{low: low}, named: low, moved: at}
}

// purgedAhead notes that the results of n rows above the low-water mark were in the part
// of the log that was purged.
func (v *logVerifier) purgedAhead(n uint64) {
	v.ahead.unseen = int(min(n, spanMax)) //nolint:gosec // no more than that
	v.ahead.purged, v.ahead.gone = v.ahead.unseen, v.ahead.unseen
}

// spanMax is more than any STAGE_ORDER_SPAN.
const spanMax = 1 << 40

// inferOrder takes the order of a log without a claim at its beginning from its first
// result.
func (v *logVerifier) inferOrder(r *stored.ResultRow) {
	if v.owner != "" || v.last > 0 || !r.Progress.Named {
		return
	}
	v.order = logOrder{Order: streams.OrderNone}
	if r.Key != nil {
		v.order.Order = streams.OrderKey
	}
	if !v.resultsGone {
		return
	}
	p := r.Progress
	v.purged, v.base = true, p.Low
	v.beginAhead(min(p.Low, r.Seq-1), r.At)
	v.ahead.named, v.last = v.ahead.low, p.Low
	if r.Seq > p.Low {
		p.Ahead = max(1, p.Ahead) - 1
	}
	v.purgedAhead(p.Ahead)
}

// claimAhead checks what a claim says about rows that have their results. An owner claims
// once more if the mark has moved since the last result, over rows that have their
// results from an earlier owner.
func (v *logVerifier) claimAhead(c *stored.Claim) error {
	m := logMessage{at: c.At, owner: cmp.Or(c.Owner, "nobody"), Progress: c.Progress}
	switch {
	case !m.Named:
		v.violate(violationLow, 0,
			"%v lacks %s, or has one that is no number: the order is %v", m, streams.HeaderLow,
			v.order)
		return nil
	case m.Low != c.Mark:
		v.violate(violationClaim, c.Mark,
			"%v names row %d as the low-water mark, and row %d in %s", m, c.Mark, m.Low,
			streams.HeaderLow)
	}
	err := v.checkAhead(m)
	v.mark = v.ahead.low
	return err
}

// readAhead checks the place of the head in a log that is not in stream order.
func (v *logVerifier) readAhead(h *verifiedRow) error {
	v.last = max(v.last, h.Seq)
	if err := v.inputAhead(v.last); err != nil {
		return err
	}
	m := logMessage{at: h.At, row: h.Seq, Progress: h.Progress}
	if h.Seq <= v.ahead.low {
		h.late, h.inInput = true, v.missing.Remove(h.Seq)
		v.violate(violationLow, h.Seq,
			"%v comes after message %d, by which every row up to row %d has its result (%s)", m,
			v.ahead.moved, v.ahead.low, streams.HeaderLow)
	} else {
		v.resultAhead(h, m)
	}
	var err error
	if m.Named {
		err = v.checkAhead(m)
	} else {
		v.violate(violationLow, h.Seq,
			"%v lacks %s, or has one that is no number: the order is %v", m, streams.HeaderLow,
			v.order)
	}
	v.mark = v.ahead.low
	return err
}

// resultAhead notes the result of a row above the low-water mark, and compares its key
// with the row and with the rows of the same key.
func (v *logVerifier) resultAhead(h *verifiedRow, m logMessage) {
	key := uint64(0)
	if h.Key != nil {
		key = hashOf(*h.Key)
	}
	row, latest := v.ahead.result(h.Seq, key, h.At)
	h.inInput, h.source = row.inInput, row.source
	if v.order.Order != streams.OrderKey {
		return
	}
	want, known := keyOfResult(v.order.key, h.ResultRow)
	switch {
	case h.erased: // its key is gone with it
		return
	case h.Key == nil:
		v.violate(violationKey, h.Seq,
			"%v has no key (%s): the order is %v", m, streams.HeaderKey, v.order)
		return
	case known && want != *h.Key:
		v.violate(violationKey, h.Seq,
			"%v has the key %q (%s): by %s it is %q", m, *h.Key, streams.HeaderKey, v.order.key,
			want)
	case row.key != 0 && row.key != key && !mayBeInvalid(h.ResultRow):
		v.violate(violationKey, h.Seq,
			"%v has the key %q (%s): its row in the input has another one by %s", m, *h.Key,
			streams.HeaderKey, v.order.key)
	}
	if latest > h.Seq {
		v.violate(violationDisorder, h.Seq,
			"%v comes after that of row %d, a later row of the same key %q", m, latest, *h.Key)
	}
}

// inputAhead reads the input up to a row.
func (v *logVerifier) inputAhead(seq uint64) error {
	if !v.present() {
		return nil
	}
	return v.input.upTo(seq, func(r *stored.InputRow) {
		switch {
		case r.Seq > v.ahead.low:
			key := uint64(0)
			if text, ok := keyOf(v.order.key, r.Subject, r.Header); ok {
				key = hashOf(text)
			}
			v.ahead.input(r.Seq, key, v.bodies.sourceOf(r))
		case !v.seen.Has(r.Seq):
			v.missing.Add(r.Seq)
		}
	})
}

// checkAhead checks what a message says about the rows that had their results when it was
// stored, and follows the low-water mark.
func (v *logVerifier) checkAhead(m logMessage) error {
	a := &v.ahead
	// The rows in between have their results in the part that was purged.
	if a.gone > 0 && m.Low > v.last {
		v.last = m.Low
		if err := v.inputAhead(v.last); err != nil {
			return err
		}
	}
	if m.Low < a.named {
		v.violate(violationLow, m.Low,
			"%v names row %d as the low-water mark (%s), the message before it row %d: it "+
				"never falls",
			m, m.Low, streams.HeaderLow, a.named)
	}
	a.named = m.Low
	low := min(m.Low, max(v.last, a.low))
	if low < m.Low {
		v.violate(violationLow, m.Low,
			"%v names row %d as the low-water mark (%s), and no row above row %d has a result", m,
			m.Low, streams.HeaderLow, low)
	}
	missing := 0
	if low > a.low {
		a.moved = m.at
		a.pass(low, func(seq uint64) {
			missing++
			v.missing.Add(seq)
		})
	}
	if m.Low == a.low { // with another mark its numbers count other rows
		v.checkCount(m, missing)
		v.checkFrom(m)
	}
	return nil
}

// checkCount compares the number of rows above the low-water mark that have a result, as
// the log gives it, with the results that were read. missing is how many rows have turned
// out to have no result since the message before.
//
// If the log says 3 and only 2 were read, either a result is lost or the number is wrong.
// A lost result is noticed when the mark passes its row; if the number goes down without
// such a row, it was wrong.
func (v *logVerifier) checkCount(m logMessage, missing int) {
	a := &v.ahead
	unseen := int(min(m.Ahead, spanMax)) - a.done //nolint:gosec // small
	switch {
	case unseen == a.unseen:
		return
	case unseen < 0:
		v.violate(violationLow, 0, "%s; it is %d", m.counted(), a.done)
	case unseen > a.unseen:
		a.since = m
	default:
		if wrong := a.unseen - unseen - missing; wrong > 0 && a.gone == 0 {
			v.violate(violationLow, 0, "%s; %d of them have none", a.since.counted(), wrong)
		}
	}
	a.unseen, a.gone = unseen, min(a.gone, max(0, unseen))
}

// checkFrom checks the place in the log before which no row above the low-water mark has
// its result.
func (v *logVerifier) checkFrom(m logMessage) {
	switch first := v.ahead.first(); {
	case m.Ahead == 0:
	case m.From == 0:
		v.violate(violationLow, 0,
			"%s and does not name the first of their places (%s)", m.counted(),
			streams.HeaderAheadFrom)
	case first > 0 && m.From > first:
		v.violate(violationLow, 0,
			"%s, from %d of the results stream on (%s); it is from %d on", m.counted(), m.From,
			streams.HeaderAheadFrom, first)
	}
}

// finishAhead reports rows above the low-water mark whose results are lost or that others
// have overtaken, and counts those that are pending.
func (v *logVerifier) finishAhead() error {
	if err := v.inputAhead(v.last); err != nil {
		return err
	}
	a := &v.ahead
	v.stats.Ahead = a.done
	a.gone = min(a.gone, max(0, a.unseen))
	lost := max(0, a.unseen-a.gone)
	a.purged -= a.gone // those that the mark has passed
	for r := range a.open {
		switch later, overtaken := a.overtaken(r); {
		case overtaken && lost > 0:
			lost--
			v.violate(violationLost, r.seq,
				"row %d has no result, and row %d of the same key has one; %s", r.seq, later,
				a.since.counted())
			continue
		case overtaken:
			v.violate(violationDisorder, r.seq,
				"row %d has no result, and row %d has one, a later row of the same key", r.seq,
				later)
		}
		v.pendingAhead++
	}
	if lost > 0 {
		v.violate(violationLost, 0,
			"%s; the results of %d of them are lost, which can't be named before the mark "+
				"passes them",
			a.since.counted(), lost)
	}
	return nil
}
