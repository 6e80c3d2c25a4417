package executor

import (
	"cmp"
	"slices"
	"sync"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/turns"
)

// rowsPerPrompt is how many rows go before each prompt of a batched request while both
// wait, so rows keep three quarters of a full pool.
const rowsPerPrompt = 3

// entry is what waits in a queue: a row, the elements of a row, or a prompt.
type entry struct {
	row    *consumer.Row
	fan    *fan    // set for a row that fans out: its elements that have not begun
	index  int     // of the element, once it is taken
	prompt *prompt // set for a prompt, and then there is no row
}

// rowQueue is the one queue before the pool, which takes what comes out of it in that
// order. It holds the rows that wait, those whose elements do, and prompts of batched
// requests.
//
// Partitions take turns, and within each its keys do. So a partition with a full window,
// or a key with a thousand rows, does not keep the others waiting. For example, where a
// key has rows 1, 2 and 3 and another has row 4, the order is 1, 4, 2, 3. The rows of a
// key are in stream order; where rows have no key that is the order of the partition. A
// prompt goes after three rows, and at once where no row can go. The windows bound the
// rows, and the requests in progress the prompts. It is safe for concurrent use.
type rowQueue struct {
	mu      sync.Mutex
	lines   map[int]*rowLine // by partition; one stays when it is empty
	turns   []*rowLine       // those with rows, in the order of their turns
	turn    int              // index in turns of the next one, or 0 if there is none
	prompts []*prompt        // in the order in which they came
	rows    int              // taken since the last prompt, at most rowsPerPrompt
	taken   []entry          // by the last take
}

// rowLine is the queue of one partition.
type rowLine struct{ rows *turns.Queue[entry] }

func newRowQueue() *rowQueue { return &rowQueue{lines: make(map[int]*rowLine)} }

func inStreamOrder(a, b entry) int { return cmp.Compare(a.row.Seq, b.row.Seq) }

// add adds a row. One that is started again may be older than those that wait, and goes
// back to its place in its key.
func (q *rowQueue) add(w entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[w.row.Partition]
	if l == nil {
		l = &rowLine{rows: turns.New(inStreamOrder)}
		q.lines[w.row.Partition] = l
	}
	if l.rows.Len() == 0 { // in front of the one whose turn is next, which is behind all others
		q.turns = slices.Insert(q.turns, q.turn, l)
		q.turn = (q.turn + 1) % len(q.turns)
	}
	l.rows.Push(w.row.Key, w)
}

// addPrompt adds a prompt.
func (q *rowQueue) addPrompt(p *prompt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prompts = append(q.prompts, p)
}

// removePrompts takes out the prompts that match, and returns them.
func (q *rowQueue) removePrompts(match func(*prompt) bool) (removed []*prompt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prompts = slices.DeleteFunc(q.prompts, func(p *prompt) bool {
		matches := match(p)
		if matches {
			removed = append(removed, p)
		}
		return matches
	})
	return removed
}

// take takes out up to most rows, elements of rows, and prompts, in their turns. A row
// that mayBegin refuses blocks those of its key behind it, and neither is looked at again
// until resume is called. What it returns is valid until the next call.
func (q *rowQueue) take(most int, mayBegin func(*consumer.Row) bool) []entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.taken) // or its array would keep rows alive that were emitted long ago
	q.taken = q.taken[:0]
	for len(q.taken) < most {
		w, ok := q.next(mayBegin)
		if !ok {
			break
		}
		q.taken = append(q.taken, w)
	}
	return q.taken
}

// next takes out what goes next. ok is false where nothing can go.
func (q *rowQueue) next(mayBegin func(*consumer.Row) bool) (w entry, ok bool) {
	if len(q.prompts) == 0 || q.rows < rowsPerPrompt {
		if w, ok = q.nextRow(mayBegin); ok {
			q.rows = min(q.rows+1, rowsPerPrompt)
			return w, true
		}
	}
	if len(q.prompts) == 0 {
		return entry{}, false
	}
	w.prompt, q.rows = q.prompts[0], 0
	q.prompts = slices.Delete(q.prompts, 0, 1)
	return w, true
}

// nextRow takes out a row, or an element of one, of the partition whose turn it is. A
// partition without a row that may begin loses its turn.
func (q *rowQueue) nextRow(mayBegin func(*consumer.Row) bool) (w entry, ok bool) {
	for range q.turns {
		l := q.turns[q.turn]
		w, ok = l.take(mayBegin)
		if l.rows.Len() > 0 {
			q.turn++
		} else {
			q.turns = slices.Delete(q.turns, q.turn, q.turn+1)
		}
		if q.turn >= len(q.turns) {
			q.turn = 0
		}
		if ok {
			return w, true
		}
	}
	return entry{}, false
}

// take takes out the first row that may begin, or one of its elements, while the other
// elements stay in its place. ok is false where there is no such row.
func (l *rowLine) take(mayBegin func(*consumer.Row) bool) (w entry, ok bool) {
	for l.rows.Ready() {
		if !mayBegin(l.rows.First().row) {
			l.rows.SetAside()
			continue
		}
		if w = l.rows.Pop(); w.fan != nil {
			var more bool
			if w.index, more = w.fan.begin(); more {
				l.rows.Push(w.row.Key, w)
			}
		}
		return w, true
	}
	return entry{}, false
}

// mayGo reports whether there is a row that is not known to have to wait.
func (q *rowQueue) mayGo() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.turns, func(l *rowLine) bool { return l.rows.Ready() })
}

// resume makes the next take look again at the rows that could not begin.
func (q *rowQueue) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.turns {
		l.rows.Resume()
	}
}

// recall takes out the rows that are no longer wanted. It calls wanted once for each, since
// the answer may change at any time: a row that is wanted when the returned ones are
// chosen, and unwanted when the list is cut, would be lost.
func (q *rowQueue) recall(wanted func(*consumer.Row) bool) (unwanted []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns = slices.DeleteFunc(q.turns, func(l *rowLine) bool {
		unwanted = append(unwanted, l.rows.Remove(func(w entry) bool { return !wanted(w.row) })...)
		return l.rows.Len() == 0
	})
	if q.turn >= len(q.turns) {
		q.turn = 0
	}
	return unwanted
}

// has reports whether a row waits in the queue.
func (q *rowQueue) has(row *consumer.Row) (has bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[row.Partition]; l != nil {
		l.rows.Remove(func(w entry) bool { // none
			has = has || w.row == row
			return false
		})
	}
	return has
}
