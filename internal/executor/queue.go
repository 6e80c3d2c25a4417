package executor

import (
	"cmp"
	"slices"
	"sync"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/turns"
)

// entry is a row in a queue.
type entry struct {
	row   *consumer.Row
	fan   *fan // not nil: the elements of the row that have not begun
	index int  // of the element, once it is taken
}

// rowQueue holds the rows that wait for the pool, and those whose elements do. Partitions
// take turns, and within each its keys do, so that one with a full window, or a key with
// a thousand rows, does not keep the others waiting; the rows of a key are in stream
// order. Where rows have no key that is the order of the partition. The windows bound it.
// Safe for concurrent use.
type rowQueue struct {
	mu    sync.Mutex
	lines map[int]*rowLine // by partition; one stays when it is empty
	turns []*rowLine       // those with rows, in the order of their turns
	turn  int              // index in turns of the next one; 0 if there is none
	taken []entry          // by the last take
}

// rowLine is the queue of one partition.
type rowLine struct {
	partition int
	rows      *turns.Queue[entry]
}

func newRowQueue() *rowQueue { return &rowQueue{lines: make(map[int]*rowLine)} }

func inStreamOrder(a, b entry) int { return cmp.Compare(a.row.Seq, b.row.Seq) }

// add adds a row. One that is started again may be older than those that wait, and goes
// back to its place in its key.
func (q *rowQueue) add(w entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[w.row.Partition]
	if l == nil {
		l = &rowLine{partition: w.row.Partition, rows: turns.New(inStreamOrder)}
		q.lines[w.row.Partition] = l
	}
	if l.rows.Len() == 0 { // in front of the one whose turn is next, which is behind all others
		q.turns = slices.Insert(q.turns, q.turn, l)
		q.turn = (q.turn + 1) % len(q.turns)
	}
	l.rows.Push(w.row.Key, w)
}

// take takes out up to most rows or elements of rows, one of each partition in turn,
// while hasRoom allows it; hasRoom is passed how many of the partition this call has
// taken before. A row that mayBegin refuses blocks those of its key behind it, and
// neither is looked at again until resume is called. The rows are valid until the next
// call.
func (q *rowQueue) take(most int, hasRoom func(partition, before int) bool, mayBegin func(*consumer.Row) bool) []entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.taken) // else the queue would hold on to rows long emitted
	q.taken = q.taken[:0]
	for passed := 0; len(q.taken) < most && passed < len(q.turns); {
		l := q.turns[q.turn]
		var w entry
		if hasRoom(l.partition, q.takenOf(l.partition)) {
			w = l.take(mayBegin)
		}
		if w.row == nil {
			q.turn = (q.turn + 1) % len(q.turns)
			passed++
			continue
		}
		passed = 0
		q.taken = append(q.taken, w)
		if l.rows.Len() > 0 {
			q.turn++
		} else {
			q.turns = slices.Delete(q.turns, q.turn, q.turn+1)
		}
		if q.turn >= len(q.turns) {
			q.turn = 0
		}
	}
	return q.taken
}

// take takes out the first row that may begin, or one of its elements: the others stay in
// its place. None: there is no such row.
func (l *rowLine) take(mayBegin func(*consumer.Row) bool) (w entry) {
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
		return w
	}
	return w
}

// resume has the next take look again at the rows that might not begin.
func (q *rowQueue) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.turns {
		l.rows.Resume()
	}
}

// takenOf counts the rows of a partition in taken.
func (q *rowQueue) takenOf(partition int) (n int) {
	for _, w := range q.taken {
		if w.row.Partition == partition {
			n++
		}
	}
	return n
}

// recall takes out the rows that are no longer wanted. It calls wanted once for each: the
// answer may change at any time, and a row found wanted at first and unwanted a moment
// later would be taken out without being returned.
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
