package verify

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/ops/proof"
)

// callFacts is what verify compares of a call event.
type callFacts struct {
	term     *auditTerm
	run      string
	index    int
	item     int  // the element that it is for, or wholeRow
	badID    bool // its state id is not the one of its row and element
	at       time.Time
	success  bool
	capacity bool
	lane     bool
	usage    *auditlog.Usage
	unpriced bool
	hash     proof.Hash // of its event, as recorded
}

// rowFacts is what verify compares of a row event.
type rowFacts struct {
	term               *auditTerm
	run                string
	at                 time.Time
	status, source     string
	attempts, capacity int
	usage              *auditlog.Usage
	queued, started    time.Time
	key                *string // nil if the event names no key
	vars               string  // hash of the row
	result             string  // hash of the result, or empty if the event names none
	earlier            []auditlog.TermCalls
	hash               proof.Hash // of the event, as recorded
	callsHash          string     // of its calls, or empty if the event names none
}

// calls is how many calls the row event counts.
func (f *rowFacts) calls() int { return f.attempts + f.capacity }

// rowAudit gathers the events of one row, from all terms that have called it. A row that
// two owners have called has the call events of both, and a row event from each owner
// that has answered it. Only the row event of the result's owner is compared with the
// result, see [rowAudit.by]. The calls of the other owner were paid for in vain and count
// as such.
type rowAudit struct {
	key   rowKey
	calls []callFacts
	rows  []rowFacts
}

// add keeps an event of the row. It keeps all call events, and the first row event of each
// term: a later one of the same term is a second copy of the first.
func (r *rowAudit) add(e *auditlog.Event, term *auditTerm, hash proof.Hash) {
	if c := e.Call; c != nil {
		r.addCall(callFacts{
			term: term, run: e.RunID, index: c.CallIndex, item: itemOf(c), at: e.Time,
			badID:    c.Item != nil && !strings.HasSuffix(c.StateID, idOf(e)),
			success:  c.Status == auditlog.CallSuccess,
			capacity: c.Status == auditlog.CallCapacityRetry,
			lane:     c.Lane != "", usage: c.Usage, unpriced: c.Unpriced(), hash: hash,
		})
	} else if r.by(term) == nil {
		r.rows = append(r.rows, rowFacts{
			term: term, run: e.RunID, at: e.Time, status: e.Row.Status, source: e.Row.Source,
			attempts: e.Row.Attempts, capacity: e.Row.CapacityRetries, usage: e.Row.Usage,
			queued: e.Row.QueuedAt, started: e.Row.StartedAt, key: e.Row.Key,
			vars: e.Row.VariablesHash, result: e.Row.ResultHash, earlier: e.Row.EarlierCalls,
			hash: hash, callsHash: e.Row.CallsHash,
		})
	}
}

// addCall keeps a call event. The same event may be stored twice: a publish that is
// repeated after the stream's window of message ids has passed stores a second copy.
func (r *rowAudit) addCall(c callFacts) {
	for i := len(r.calls) - 1; i >= 0; i-- { // mostly they come in order
		have := &r.calls[i]
		if have.term != c.term {
			continue
		}
		if have.index < c.index {
			break
		}
		if have.index == c.index && have.at.Equal(c.at) {
			return
		}
	}
	r.calls = append(r.calls, c)
}

// idOf is the end of the state id of a call for an element: "/7#2" for element 2 of row 7.
func idOf(e *auditlog.Event) string {
	return "/" + strconv.FormatUint(e.Call.Sequence, 10) + "#" + strconv.Itoa(*e.Call.Item)
}

// by returns the row event of a term, or nil if there is none.
func (r *rowAudit) by(t *auditTerm) *rowFacts {
	if r == nil {
		return nil
	}
	for i := range r.rows {
		if r.rows[i].term == t {
			return &r.rows[i]
		}
	}
	return nil
}

// chosen returns the calls that a row event counts; ok is false while some are missing.
//
// Usually they are the calls of the row's term. There are four exceptions:
//
//   - A process held the row while one of its terms ended and the next began. The row
//     then has calls in both terms and one row event, which counts the process's last
//     calls.
//   - The reply came from the journal. It was paid for in an earlier term, perhaps by
//     another process, and the row event does not name that term.
//   - The row was in one batch after another. Its row event names only the last answer.
//   - The row fans out: see ofElements.
func (r *rowAudit) chosen(f *rowFacts) (calls []callFacts, ok bool) {
	if f.source != auditlog.SourceDedupe && r.fanned() {
		return r.ofElements(f)
	}
	own := r.filter(func(c *callFacts) bool { return c.term == f.term })
	n := f.calls()
	switch f.source {
	case auditlog.SourceDedupe:
		return own, true // the calls were made for another row, whose reply this one shares
	case auditlog.SourceJournal:
		return r.journaled(f)
	}
	if r.laned() {
		return r.journaled(f)
	}
	if len(own) >= n {
		return own, numbered(own)
	}
	all := r.filter(func(c *callFacts) bool { return c.run == f.run && !c.at.After(f.at) })
	if len(all) < n {
		return own, false
	}
	return all[len(all)-n:], numbered(own)
}

// laned reports whether a batch has answered the row, even if the answer was not used.
func (r *rowAudit) laned() bool {
	return r != nil && slices.ContainsFunc(r.calls, func(c callFacts) bool { return c.lane })
}

// journaled looks for the calls of a reply from the journal, or of a batch. The row event
// does not name their term, so they are searched for: consecutive calls of one process
// whose retries and usage add up to the row event's. If several such runs of calls exist,
// the one with the row event's hash is taken. If no hash fits, the first one is.
//
// For example, a row event counts 2 calls and 30 tokens, and a process has made calls of
// 10, 20 and 10 tokens. Its first two calls fit, and so do its last two. The hash
// decides.
func (r *rowAudit) journaled(f *rowFacts) (calls []callFacts, ok bool) {
	n := f.calls()
	for i := range r.calls {
		inRun := func(c *callFacts) bool { return c.run == r.calls[i].run }
		if slices.ContainsFunc(r.calls[:i], func(c callFacts) bool { return inRun(&c) }) {
			continue // searched already
		}
		all := r.filter(inRun)
		for i := 0; i+n <= len(all); i++ {
			some := all[i : i+n]
			if capacity, usage := sumsOf(some); capacity != f.capacity || compareUsage(usage, f.usage) != nil {
				continue
			}
			if f.callsHash == "" || hashOfCalls(some).String() == f.callsHash {
				return some, true
			}
			if !ok {
				calls, ok = some, true
			}
		}
	}
	return calls, ok || n == 0
}

// hashOfCalls returns the hash of calls as a row event has it, taken in the order in which
// they were made. The order comes from the numbers of their terms and from their numbers
// within a term, never from their times, since clocks may jump.
func hashOfCalls(calls []callFacts) (hash proof.Hash) {
	calls = slices.Clone(calls)
	slices.SortStableFunc(calls, func(a, b callFacts) int {
		return cmp.Or(cmp.Compare(a.term.number, b.term.number), cmp.Compare(a.index, b.index))
	})
	for i := range calls {
		hash = hash.Calls(calls[i].hash)
	}
	return hash
}

// hashOfItems returns the hash of the calls of a row that fans out. It takes element after
// element, and for each the calls that its reply is from.
func (r *rowAudit) hashOfItems(f *rowFacts) (hash proof.Hash) {
	items := make(map[int][]callFacts)
	for _, c := range r.filter(func(c *callFacts) bool { return c.term == f.term }) {
		items[c.item] = append(items[c.item], c)
	}
	for _, t := range f.earlier {
		for _, item := range t.Items {
			items[item.Item], _ = r.ofElement(t.Owner, item)
		}
	}
	for _, item := range slices.Sorted(maps.Keys(items)) {
		hash = hash.Calls(hashOfCalls(items[item]))
	}
	return hash
}

// filter returns the calls that match, in the order in which they were made.
func (r *rowAudit) filter(match func(*callFacts) bool) (calls []callFacts) {
	for i := range r.calls {
		if match(&r.calls[i]) {
			calls = append(calls, r.calls[i])
		}
	}
	slices.SortStableFunc(calls, func(a, b callFacts) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.index, b.index))
	})
	return calls
}

// hole returns the lowest number that calls should have and do not have exactly once, and
// how often they have it. The calls of one term are numbered from 0, so without a hole
// the number returned is their count: calls 0, 1, 3 give (2, 0), and calls 0, 1, 2 give
// (3, 0).
func hole(calls []callFacts) (number, times int) {
	have := make([]int, len(calls))
	for i := range calls {
		if n := calls[i].index; n >= 0 && n < len(have) {
			have[n]++
		}
	}
	for n, times := range have {
		if times != 1 {
			return n, times
		}
	}
	return len(calls), 0
}

// numbered reports whether calls have no hole.
func numbered(calls []callFacts) bool {
	n, _ := hole(calls)
	return n == len(calls)
}

// sumsOf counts the capacity retries among calls, and sums the usage.
func sumsOf(calls []callFacts) (capacity int, usage auditlog.UsageSum) {
	for i := range calls {
		if calls[i].capacity {
			capacity++
		}
		usage.Add(calls[i].usage, calls[i].unpriced)
	}
	return capacity, usage
}
