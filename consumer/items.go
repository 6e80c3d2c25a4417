package consumer

import (
	"cmp"
	"iter"
	"slices"

	"github.com/llm-stage/stage/auditlog"
)

// A row that fans out is answered element by element, and each reply waits for the others
// as the reply to a whole row waits for earlier rows. So each goes to the journal by
// itself. To the journal an element is a row of its own, with its row as parent: it has
// the parent's sequence and turn, and its own reply and count of events that are not
// stored.

// KeepItem hands over the reply to one element of the row, counted from 0. The journal
// keeps it like the reply to a whole row, and it counts in the window until the row is
// emitted. The row's own reply follows when all its elements are answered, without a
// [Reply.RequestHash]. KeepItem must be called at most once for an element, before
// [Row.Reply], also where the row is handed back and started again. It does not block.
func (r *Row) KeepItem(index int, reply Reply) {
	item := r.item(index)
	item.reply = &reply
	item.isPaid()
	r.shared.mail.put(item)
}

// paid says which calls the reply to an element is from.
type paid struct {
	owner       string // of the last one
	index       int    // of the last one, see [auditlog.Call]
	calls       int    // all of them; 0 means none, or there is no reply yet
	callsByLast int    // that owner made
}

// called counts a call for an element.
func (r *Row) called(owner string, index int) {
	r.element.parent.mu.Lock()
	defer r.element.parent.mu.Unlock()
	if p := &r.element.paid; p.owner == owner {
		p.index, p.callsByLast = index, p.callsByLast+1
	} else {
		*p = paid{owner: owner, index: index, callsByLast: 1}
	}
}

// isPaid notes which calls the reply to an element is from. A reply from the journal says
// it itself.
func (r *Row) isPaid() {
	e := &r.reply.Event
	r.element.parent.mu.Lock()
	defer r.element.parent.mu.Unlock()
	if len(e.EarlierCalls) == 0 || len(e.EarlierCalls[0].Items) == 0 {
		r.element.paid.calls = e.Attempts + e.CapacityRetries
		return
	}
	last := e.EarlierCalls[0].Items[0]
	r.element.paid = paid{owner: e.EarlierCalls[0].Owner, index: last.CallIndex, calls: last.Calls}
}

// earlierCalls returns for the event of a row which calls for its elements are not the
// owner's. For the event of an element, which goes to the journal, it returns the calls
// that the reply is from.
func (r *Row) earlierCalls(owner string) (terms []auditlog.TermCalls) {
	of := []*Row{r}
	if r.element.parent == nil {
		if !r.hasItems() { // the rule
			return nil
		}
		of = slices.SortedFunc(r.eachItem(), func(a, b *Row) int { return cmp.Compare(a.element.index, b.element.index) })
	}
	for _, item := range of {
		item.element.parent.mu.Lock()
		p := item.element.paid
		item.element.parent.mu.Unlock()
		if p.calls == 0 || r.element.parent == nil && p.owner == owner && p.callsByLast >= p.calls {
			continue
		}
		i := slices.IndexFunc(terms, func(t auditlog.TermCalls) bool { return t.Owner == p.owner })
		if i < 0 {
			i = len(terms)
			terms = append(terms, auditlog.TermCalls{Owner: p.owner})
		}
		calls := auditlog.ItemCalls{Item: item.element.index, CallIndex: p.index, Calls: p.calls}
		terms[i].Items = append(terms[i].Items, calls)
	}
	return terms
}

// item returns an element, which it creates.
func (r *Row) item(index int) *Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	item := r.items[index]
	if item == nil {
		item = &Row{
			Partition: r.Partition, Seq: r.Seq, Key: r.Key, StateID: auditlog.ItemStateID(r.StateID, index),
			element: element{parent: r, index: index},
		}
		if r.items == nil {
			r.items = make(map[int]*Row)
		}
		r.items[index] = item
	}
	return item
}

// hasItems reports whether the row has any elements so far.
func (r *Row) hasItems() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.items) > 0
}

// itemIndex returns the index of an element, and wholeRow for a row.
func (r *Row) itemIndex() int {
	if r.element.parent == nil {
		return wholeRow
	}
	return r.element.index
}

// eachItem yields the elements of the row so far, in no order. The row's mu is locked
// meanwhile.
func (r *Row) eachItem() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, item := range r.items {
			if !yield(item) {
				return
			}
		}
	}
}

// answeredItems returns the elements that are answered.
func (r *Row) answeredItems() (items []*Row) {
	for item := range r.eachItem() {
		if item.answered {
			items = append(items, item)
		}
	}
	return items
}
