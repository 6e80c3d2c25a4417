package verify

import (
	"slices"

	"github.com/llm-stage/stage/auditlog"
)

// wholeRow stands for the item of a call that is for no single element of its row.
const wholeRow = -1

// itemOf returns the element that a call is for, from 0, or wholeRow.
func itemOf(c *auditlog.Call) int {
	if c.Item == nil {
		return wholeRow
	}
	return *c.Item
}

// fanned reports whether elements of the row were called.
func (r *rowAudit) fanned() bool {
	return r != nil && slices.ContainsFunc(r.calls, func(c callFacts) bool { return c.item != wholeRow })
}

// ofElements returns the calls that the row event of a row that fans out counts: all
// calls of its term, and the calls of earlier terms that the event names. The calls for
// one reply are consecutive calls for the element by one process. The calls of a term are
// numbered over all elements. For example, two calls for element 0 and one for element 1
// are 0, 1 and 2. ok is false while some are missing, since a call event may be stored
// after the row event.
func (r *rowAudit) ofElements(f *rowFacts) (calls []callFacts, ok bool) {
	calls = r.filter(func(c *callFacts) bool { return c.term == f.term })
	ok = numbered(calls)
	for _, t := range f.earlier {
		for _, item := range t.Items {
			of, found := r.ofElement(t.Owner, item)
			ok = ok && found
			for i := range of {
				if of[i].term != f.term { // the calls of the row's own term are there already
					calls = append(calls, of[i])
				}
			}
		}
	}
	return calls, ok && len(calls) >= f.calls()
}

// ofElement returns the calls that a reply to an element is from.
func (r *rowAudit) ofElement(owner string, item auditlog.ItemCalls) (calls []callFacts, ok bool) {
	last := slices.IndexFunc(r.calls, func(c callFacts) bool {
		return c.item == item.Item && c.term.owner == owner && c.index == item.CallIndex
	})
	if last < 0 {
		return nil, false
	}
	all := r.filter(func(c *callFacts) bool { return c.item == item.Item && c.run == r.calls[last].run })
	n := 1 + slices.IndexFunc(all, func(c callFacts) bool { return c.term == r.calls[last].term && c.index == item.CallIndex })
	if item.Calls < 1 || item.Calls > n {
		return nil, false
	}
	return all[n-item.Calls : n], true
}

// lacksCalls reports the elements whose calls the row event names and the audit does not
// have.
func (a *auditor) lacksCalls(h *verifiedRow, row *rowAudit, event *rowFacts) (lacks bool) {
	for _, t := range event.earlier {
		for _, item := range t.Items {
			if _, ok := row.ofElement(t.Owner, item); !ok {
				lacks = true
				a.violate(violationNoCallEvent, h.Seq, "row %d: its reply to element %d is from the %d calls up to call %d of %s, which are not all in the audit",
					h.Seq, item.Item, item.Calls, item.CallIndex, t.Owner)
			}
		}
	}
	return lacks
}

// checkElements checks the calls for elements of the row of a result.
func (a *auditor) checkElements(h *verifiedRow, row *rowAudit) {
	if !row.fanned() {
		return
	}
	paid := make(map[int]bool)
	own := slices.ContainsFunc(row.calls, func(c callFacts) bool { return c.term == h.term && c.item != wholeRow })
	for i := range row.calls {
		switch c := &row.calls[i]; {
		case c.badID:
			a.violate(violationItem, h.Seq,
				"row %d has a call for element %d, call %d of %s, with the state id of "+
					"another one",
				h.Seq, c.item, c.index, c.term.owner)
		// One of the two terms fans out over another array, or over none.
		case c.term != h.term && !a.runs.sameArray(c.term.owner, h.term.owner):
		// The elements belong to a term with other settings.
		case c.item == wholeRow && c.term == h.term && !own:
		case c.item == wholeRow:
			a.violate(violationItem, h.Seq,
				"row %d has calls for single elements, and one for the whole row, call %d of "+
					"%s",
				h.Seq, c.index, c.term.owner)
		case h.items >= 0 && c.item >= h.items:
			a.violate(violationItem, h.Seq,
				"row %d has a call for element %d, call %d of %s, and its array has %d", h.Seq,
				c.item, c.index, c.term.owner, h.items)
		case c.success && c.term == h.term && paid[c.item]:
			a.violate(violationPaidTwice, h.Seq,
				"row %d: %s was given two replies to element %d, each of which was paid for",
				h.Seq, c.term.owner, c.item)
		case c.success && c.term == h.term:
			paid[c.item] = true
		}
	}
}
