package verify

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
)

// auditTerm is one term of ownership as claims and events tell of it.
type auditTerm struct {
	owner string
	epoch int // counts the input streams that the partition has had
	// since is when the term was claimed, or the last row taken that the audit tells of: the row events of the results to
	// come were stored later. Zero: not known.
	since time.Time
}

// rowKey names a row: sequences of an input stream that was created anew mean other rows.
type rowKey struct {
	epoch int
	seq   uint64
}

func (k rowKey) compare(o rowKey) int {
	return cmp.Or(cmp.Compare(k.epoch, o.epoch), cmp.Compare(k.seq, o.seq))
}

// callFacts is what counts of a call event.
type callFacts struct {
	term     *auditTerm
	run      string
	index    int
	at       time.Time
	capacity bool
	usage    *auditlog.Usage
	unpriced bool
}

// rowFacts is what counts of a row event.
type rowFacts struct {
	term               *auditTerm
	run                string
	at                 time.Time
	status, source     string
	attempts, capacity int
	usage              *auditlog.Usage
	queued, started    time.Time
}

// calls is how many calls the row event counts.
func (f *rowFacts) calls() int { return f.attempts + f.capacity }

// rowAudit gathers the events of one row.
type rowAudit struct {
	key   rowKey
	calls []callFacts
	rows  []rowFacts
}

// addCall keeps a call event. The same event may be there twice: a publish that is repeated after the stream's window of
// message ids has passed stores a second copy.
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

func (r *rowAudit) addRow(f rowFacts) {
	if r.by(f.term) == nil {
		r.rows = append(r.rows, f)
	}
}

// by returns the row event of a term; nil when there is none.
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
// As a rule they are those of its term. A row that was in the hands of a process while one term of it ended and the next
// began has calls in both, and one row event: then it is the last calls of the process. A reply that was kept in the
// journal was paid for in an earlier term, perhaps of another process, and the row event does not say which.
func (r *rowAudit) chosen(f *rowFacts) (calls []callFacts, ok bool) {
	own := r.filter(func(c *callFacts) bool { return c.term == f.term })
	n := f.calls()
	switch f.source {
	case auditlog.SourceDedupe:
		return own, true // the calls are those of another row
	case auditlog.SourceJournal:
		return r.kept(f)
	}
	if len(own) >= n {
		return own, noHoles(own)
	}
	all := r.filter(func(c *callFacts) bool { return c.run == f.run && !c.at.After(f.at) })
	if len(all) < n {
		return own, false
	}
	return all[len(all)-n:], noHoles(own)
}

// kept looks for the calls that a reply from the journal was made of: so many in a row, of one process, with that usage.
func (r *rowAudit) kept(f *rowFacts) (calls []callFacts, ok bool) {
	n := f.calls()
	var runs []string
	for i := range r.calls {
		if run := r.calls[i].run; !slices.Contains(runs, run) {
			runs = append(runs, run)
		}
	}
	for _, run := range runs {
		all := r.filter(func(c *callFacts) bool { return c.run == run })
		for i := 0; i+n <= len(all); i++ {
			if calls = all[i : i+n]; usageDiffers(usageOf(calls), f.usage) == nil && capacityOf(calls) == f.capacity {
				return calls, true
			}
		}
	}
	return nil, n == 0
}

// filter returns the calls that match, in the order in which they were made.
func (r *rowAudit) filter(match func(*callFacts) bool) (calls []callFacts) {
	for i := range r.calls {
		if match(&r.calls[i]) {
			calls = append(calls, r.calls[i])
		}
	}
	slices.SortStableFunc(calls, func(a, b callFacts) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.index, b.index)) })
	return calls
}

// noHoles tells whether the calls of one term are numbered from 0 without a hole. Two of the same number leave a hole.
func noHoles(calls []callFacts) bool {
	seen := make([]bool, len(calls))
	for i := range calls {
		n := calls[i].index
		if n < 0 || n >= len(seen) || seen[n] {
			return false
		}
		seen[n] = true
	}
	return true
}

func capacityOf(calls []callFacts) (n int) {
	for i := range calls {
		if calls[i].capacity {
			n++
		}
	}
	return n
}

func usageOf(calls []callFacts) (sum auditlog.UsageSum) {
	for i := range calls {
		sum.Add(calls[i].usage, calls[i].unpriced)
	}
	return sum
}

// usageFault says which numbers are not the same.
type usageFault struct {
	kind string
	text string
}

// usageDiffers compares the sum of calls with the one in an event; nil: they are equal. Unknown is not 0. Where the cost
// of a call that reported no usage is unknown, older versions wrote the sum of the others: that is accepted too.
func usageDiffers(sum auditlog.UsageSum, said *auditlog.Usage) *usageFault {
	calls := sum.Reported
	if said != nil && said.CostUSD == nil {
		calls = sum.Total()
	}
	if calls == nil && said == nil {
		return nil
	}
	if calls == nil || said == nil {
		return &usageFault{violationTokens, fmt.Sprintf("%s in the call events, %s", "tokens "+calls.Tokens(), "tokens "+said.Tokens())}
	}
	for _, t := range []struct {
		name string
		a, b *int64
	}{
		{"prompt", &calls.PromptTokens, &said.PromptTokens},
		{"completion", &calls.CompletionTokens, &said.CompletionTokens},
		{"total", &calls.TotalTokens, &said.TotalTokens},
		{"cached", calls.CachedTokens, said.CachedTokens},
		{"cache write", calls.CacheWriteTokens, said.CacheWriteTokens},
		{"cache write 1h", calls.CacheWrite1hTokens, said.CacheWrite1hTokens},
		{"reasoning", calls.ReasoningTokens, said.ReasoningTokens},
	} {
		if (t.a == nil) != (t.b == nil) || t.a != nil && *t.a != *t.b {
			return &usageFault{violationTokens, fmt.Sprintf("%s %s tokens in the call events, %s", numberText(t.a), t.name, numberText(t.b))}
		}
	}
	a, b := calls.CostUSD, said.CostUSD
	if (a == nil) != (b == nil) || a != nil && math.Abs(*a-*b) > 1e-9+1e-9*math.Abs(*a) { // sums in another order
		return &usageFault{violationCost, fmt.Sprintf("cost in USD %s in the call events, %s", cost.Format(calls), cost.Format(said))}
	}
	return nil
}

func numberText(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// auditWindow holds the events of rows whose result is not read yet: of those ahead, and for a while of those that were
// passed by, since their result may come late.
type auditWindow struct {
	ahead  map[rowKey]*rowAudit
	order  keyHeap // of those ahead
	passed map[rowKey]*rowAudit
	oldest []rowKey // of those passed, the oldest first
	limit  int      // of each
}

func newAuditWindow(limit int) auditWindow {
	return auditWindow{ahead: make(map[rowKey]*rowAudit), passed: make(map[rowKey]*rowAudit), limit: limit}
}

// at returns what is held of a row; nil: nothing.
func (w *auditWindow) at(key rowKey) *rowAudit {
	if r := w.ahead[key]; r != nil {
		return r
	}
	return w.passed[key]
}

// add returns what is held of a row, and begins to hold it.
func (w *auditWindow) add(key rowKey, ahead bool) *rowAudit {
	r := w.at(key)
	if r != nil {
		return r
	}
	r = &rowAudit{key: key}
	if ahead {
		w.ahead[key] = r
		heap.Push(&w.order, key)
	} else {
		w.keep(r)
	}
	return r
}

// full says that so many rows are ahead of the next result that all its events must have come: a stage takes no row beyond
// its window before the first of the window is emitted.
func (w *auditWindow) full() bool { return len(w.ahead) > w.limit }

// pass lets go of a row, and takes those before it for passed by; skipped is told of them.
func (w *auditWindow) pass(key rowKey, skipped func(rowKey)) {
	delete(w.passed, key)
	for len(w.order) > 0 && w.order[0].compare(key) <= 0 {
		k, _ := heap.Pop(&w.order).(rowKey)
		if k != key {
			w.keep(w.ahead[k])
			skipped(k)
		}
		delete(w.ahead, k)
	}
}

// keep holds a row that was passed by, and lets go of the oldest one where there are too many.
func (w *auditWindow) keep(r *rowAudit) {
	if len(w.oldest) >= w.limit {
		delete(w.passed, w.oldest[0])
		w.oldest = w.oldest[1:]
	}
	w.oldest = append(w.oldest, r.key)
	w.passed[r.key] = r
}

// keyHeap is a heap of keys, the lowest first.
type keyHeap []rowKey

func (h keyHeap) Len() int           { return len(h) }
func (h keyHeap) Less(i, j int) bool { return h[i].compare(h[j]) < 0 }
func (h keyHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is called by the heap.
func (h *keyHeap) Push(x any) { *h = append(*h, x.(rowKey)) } //nolint:forcetypeassert // of ours alone

// Pop is called by the heap.
func (h *keyHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
