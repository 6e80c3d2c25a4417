package verify

import (
	"cmp"
	"slices"

	"github.com/llm-stage/stage/auditlog"
)

// wholeRow stands for the item of a call that is for no single element of its row.
const wholeRow = -1

// itemOf is the element that a call is for, from 0.
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

// ofElements returns the calls that the row event of a row that fans out counts: all of its term, and of the elements
// whose replies are older those that made these replies. The row event does not say which elements those are, only what
// the calls add up to. A reply from the journal was paid for by consecutive calls of one process; one that the process
// itself held from an earlier term, by the last ones before those of this term.
//
// The calls of a term are numbered over all elements. ok is false while some are missing, or where no such calls add up.
func (r *rowAudit) ofElements(f *rowFacts) (calls []callFacts, ok bool) {
	own := r.filter(func(c *callFacts) bool { return c.term == f.term })
	if len(own) >= f.calls() || !numbered(own) {
		return own, numbered(own)
	}
	s := elementSearch{want: f, picked: slices.Clone(own), left: searchSteps}
	s.add(own)
	for _, e := range r.elements(own, f) {
		s.elements = append(s.elements, e)
		s.most = append(s.most, 0)
	}
	for i := len(s.elements) - 1; i >= 0; i-- { // the first run of an element is the longest
		s.most[i] = len(s.elements[i][0])
		if i+1 < len(s.most) {
			s.most[i] += s.most[i+1]
		}
	}
	found := s.find(0)
	if r.unsure = !found && s.left < 0; found {
		return s.picked, true
	}
	return own, false
}

// elements returns for each element with calls of earlier terms which of these may have made the reply that the row has,
// the most calls first.
func (r *rowAudit) elements(own []callFacts, f *rowFacts) (all [][][]callFacts) {
	type group struct {
		item int
		run  string
	}
	called := make(map[int]bool, len(own))
	for i := range own {
		called[own[i].item] = true
	}
	groups := make(map[group][]callFacts)
	for _, c := range r.filter(func(c *callFacts) bool { return c.term != f.term && !c.at.After(f.at) }) {
		if !called[c.item] || c.run == f.run {
			g := group{c.item, c.run}
			groups[g] = append(groups[g], c)
		}
	}
	runs := make(map[int][][]callFacts)
	for g, calls := range groups {
		for from := range calls {
			runs[g.item] = append(runs[g.item], calls[from:])
			for to := len(calls) - 1; to > from && !called[g.item]; to-- {
				if !calls[to-1].capacity { // else it has brought no reply
					runs[g.item] = append(runs[g.item], calls[from:to])
				}
			}
		}
	}
	for _, of := range runs {
		slices.SortFunc(of, func(a, b []callFacts) int {
			return cmp.Or(cmp.Compare(len(b), len(a)), b[0].at.Compare(a[0].at), cmp.Compare(a[0].run, b[0].run))
		})
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b [][]callFacts) int { return cmp.Compare(a[0][0].item, b[0][0].item) })
	return all
}

// searchSteps bounds the search of one row. Mostly the first calls that are looked at are right: elements whose calls a
// kill has cost are as few as there were calls in flight.
const searchSteps = 100_000

// elementSearch looks for the calls of some elements that add up to a row event.
type elementSearch struct {
	want     *rowFacts
	elements [][][]callFacts // of each element the calls to choose from
	most     []int           // the most calls that the elements from there on may have

	picked                    []callFacts
	capacity                  int // of picked
	prompt, completion, total int64
	left                      int // steps
}

func (s *elementSearch) add(calls []callFacts) { s.count(calls, 1) }

// count adds calls to the sums, or takes them out.
func (s *elementSearch) count(calls []callFacts, sign int64) {
	for i := range calls {
		if calls[i].capacity {
			s.capacity += int(sign)
		}
		if u := calls[i].usage; u != nil {
			s.prompt += sign * u.PromptTokens
			s.completion += sign * u.CompletionTokens
			s.total += sign * u.TotalTokens
		}
	}
}

// find looks for the calls of the elements from one on. Any of them may have none: its reply was that of an equal
// request, or it has failed without a call.
func (s *elementSearch) find(from int) bool {
	s.left--
	missing := s.want.calls() - len(s.picked)
	switch {
	case missing == 0:
		return s.addsUp()
	case missing < 0, from == len(s.elements), s.most[from] < missing, s.left < 0, s.capacity > s.want.capacity:
		return false
	}
	for _, calls := range s.elements[from] {
		if len(calls) > missing {
			continue
		}
		s.add(calls)
		s.picked = append(s.picked, calls...)
		if s.find(from + 1) {
			return true
		}
		s.picked = s.picked[:len(s.picked)-len(calls)]
		s.count(calls, -1)
	}
	return s.find(from + 1)
}

func (s *elementSearch) addsUp() bool {
	u := s.want.usage
	if u == nil {
		u = &auditlog.Usage{}
	}
	if s.capacity != s.want.capacity || s.prompt != u.PromptTokens || s.completion != u.CompletionTokens || s.total != u.TotalTokens {
		return false
	}
	_, usage := sumsOf(s.picked)
	return compareUsage(usage, s.want.usage) == nil
}

// checkElements checks the calls for elements of the row of a result.
func (v *partitionVerifier) checkElements(h *verifiedRow, row *rowAudit) {
	if !row.fanned() {
		return
	}
	paid := make(map[int]bool)
	own := slices.ContainsFunc(row.calls, func(c callFacts) bool { return c.term == h.term && c.item != wholeRow })
	for i := range row.calls {
		switch c := &row.calls[i]; {
		case c.badID:
			v.violate(violationItem, h.Seq, "row %d has a call for element %d, call %d of %s, with the state id of another one", h.Seq, c.item, c.index, c.term.owner)
		case c.term != h.term && !v.runs.sameArray(c.term.owner, h.term.owner): // of the elements of another array, or of none
		case c.item == wholeRow && c.term == h.term && !own: // the elements are those of a term with other settings
		case c.item == wholeRow:
			v.violate(violationItem, h.Seq, "row %d has calls for single elements, and one for the whole row, call %d of %s", h.Seq, c.index, c.term.owner)
		case h.items >= 0 && c.item >= h.items:
			v.violate(violationItem, h.Seq, "row %d has a call for element %d, call %d of %s, and its array has %d", h.Seq, c.item, c.index, c.term.owner, h.items)
		case c.success && c.term == h.term && paid[c.item]:
			v.violate(violationPaidTwice, h.Seq, "row %d: %s was given two replies to element %d, each of which was paid for", h.Seq, c.term.owner, c.item)
		case c.success && c.term == h.term:
			paid[c.item] = true
		}
	}
}
