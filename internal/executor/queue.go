package executor

import (
	"cmp"
	"slices"
	"sync"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/turns"
)

// rowQueue holds the rows that wait for the pool. Partitions take turns, and within each its keys do, so that one with a
// full window, or a key with a thousand rows, does not keep the others waiting; the rows of a key are in stream order.
// Where rows have no key that is the order of the partition. The windows bound it. Safe for concurrent use.
type rowQueue struct {
	mu    sync.Mutex
	lines map[int]*rowLine // by partition; one stays when it is empty
	turns []*rowLine       // those with rows, in the order of their turns
	turn  int              // index in turns of the next one; 0 if there is none
	taken []*consumer.Row  // by the last take
}

// rowLine is the queue of one partition.
type rowLine struct {
	partition int
	rows      *turns.Queue[*consumer.Row]
}

func newRowQueue() *rowQueue { return &rowQueue{lines: make(map[int]*rowLine)} }

func inStreamOrder(a, b *consumer.Row) int { return cmp.Compare(a.Seq, b.Seq) }

// add adds a row. One that is started again may be older than those that wait, and goes back to its place in its key.
func (q *rowQueue) add(row *consumer.Row) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[row.Partition]
	if l == nil {
		l = &rowLine{partition: row.Partition, rows: turns.New(inStreamOrder)}
		q.lines[row.Partition] = l
	}
	if l.rows.Len() == 0 { // in front of the one whose turn is next, which is behind all others
		q.turns = slices.Insert(q.turns, q.turn, l)
		q.turn = (q.turn + 1) % len(q.turns)
	}
	l.rows.Push(row.Key, row)
}

// take takes out up to most rows, one of each partition in turn, while hasRoom allows it; hasRoom is passed how many
// rows of the partition this call has taken before. A row that mayBegin refuses blocks those of its key behind it, and
// neither is looked at again until resume is called. The rows are valid until the next call.
func (q *rowQueue) take(most int, hasRoom func(partition, before int) bool, mayBegin func(*consumer.Row) bool) []*consumer.Row {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.taken) // else the queue would hold on to rows long emitted
	q.taken = q.taken[:0]
	for passed := 0; len(q.taken) < most && passed < len(q.turns); {
		l := q.turns[q.turn]
		var row *consumer.Row
		if hasRoom(l.partition, q.takenOf(l.partition)) {
			row = l.take(mayBegin)
		}
		if row == nil {
			q.turn = (q.turn + 1) % len(q.turns)
			passed++
			continue
		}
		passed = 0
		q.taken = append(q.taken, row)
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

// take takes out the first row that may begin, or returns nil.
func (l *rowLine) take(mayBegin func(*consumer.Row) bool) *consumer.Row {
	for l.rows.Ready() {
		if mayBegin(l.rows.First()) {
			return l.rows.Pop()
		}
		l.rows.SetAside()
	}
	return nil
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
	for _, row := range q.taken {
		if row.Partition == partition {
			n++
		}
	}
	return n
}

// recall takes out the rows that are no longer wanted. It calls wanted once for each: the answer may change at any
// time, and a row found wanted at first and unwanted a moment later would be taken out without being returned.
func (q *rowQueue) recall(wanted func(*consumer.Row) bool) (unwanted []*consumer.Row) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns = slices.DeleteFunc(q.turns, func(l *rowLine) bool {
		unwanted = append(unwanted, l.rows.Remove(func(row *consumer.Row) bool { return !wanted(row) })...)
		return l.rows.Len() == 0
	})
	if q.turn >= len(q.turns) {
		q.turn = 0
	}
	return unwanted
}
