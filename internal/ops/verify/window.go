package verify

import "slices"

// auditWindow holds the events of rows whose result is not checked yet. A row is in ahead
// or in passed or in neither, never in both:
//
//	first event ──► ahead ──► its result is checked, and the row is dropped
//	                  │
//	                  └─ a later result is checked first ──► passed ──► its result comes late,
//	                                                    or limit further rows were passed by
type auditWindow struct {
	// ahead has the row of the next result and those whose results may come after it;
	// order has their keys, sorted, and some of rows that have left. Events come almost
	// in order, so a new key belongs near the end.
	ahead map[rowKey]*rowAudit
	order []rowKey
	// passed has rows that a later result has passed by, since their own result may still
	// come. oldest has their keys in the order in which they came, and also the keys of
	// rows that have left passed.
	passed map[rowKey]*rowAudit
	oldest []rowKey
	limit  int // of ahead (one more makes the window full), and of oldest
}

// newAuditWindow returns a window of so many rows ahead.
func newAuditWindow(limit int) auditWindow {
	return auditWindow{ahead: make(map[rowKey]*rowAudit), passed: make(map[rowKey]*rowAudit), limit: limit}
}

// at returns the audit of a row, or nil.
func (w *auditWindow) at(key rowKey) *rowAudit {
	if r := w.ahead[key]; r != nil {
		return r
	}
	return w.passed[key]
}

// add returns the audit of a row. A new row goes to ahead if the flag is set.
func (w *auditWindow) add(key rowKey, ahead bool) *rowAudit {
	if r := w.at(key); r != nil {
		return r
	}
	r := &rowAudit{key: key}
	if ahead {
		w.ahead[key] = r
		i, _ := slices.BinarySearchFunc(w.order, key, rowKey.compare)
		w.order = slices.Insert(w.order, i, key)
	} else {
		w.keep(r)
	}
	return r
}

// full reports whether so many rows are ahead that all events of the next result must
// have come. A stage holds no more rows than its window, from taking a row to emitting
// its result. A process that takes over takes the same rows again first, including rows
// of fenced owners. So more rows than the limit are ahead only if events of the next
// result are missing.
func (w *auditWindow) full() bool { return len(w.ahead) > w.limit }

// pass drops a row, and counts the rows up to another one as passed by. It calls skipped
// for each of these.
func (w *auditWindow) pass(key, upTo rowKey, skipped func(rowKey)) {
	delete(w.passed, key)
	delete(w.ahead, key)
	for len(w.order) > 0 && w.order[0].compare(upTo) <= 0 {
		k := w.order[0]
		w.order = w.order[1:]
		if r := w.ahead[k]; r != nil {
			w.keep(r)
			skipped(k)
			delete(w.ahead, k)
		}
	}
}

// keep holds a row that was passed by, and drops the oldest one if there are too many.
func (w *auditWindow) keep(r *rowAudit) {
	if len(w.oldest) >= w.limit {
		delete(w.passed, w.oldest[0])
		w.oldest = w.oldest[1:]
	}
	w.oldest = append(w.oldest, r.key)
	w.passed[r.key] = r
}
