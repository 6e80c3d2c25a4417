package executor

import (
	"cmp"
	"slices"
	"sync"

	"github.com/llm-stage/stage/consumer"
)

// rowQueue holds the rows that wait for the pool: those of a partition in stream order. Partitions take turns, so that
// one with a full window does not keep the others waiting. The windows bound it. Safe for concurrent use.
type rowQueue struct {
	mu    sync.Mutex
	lines map[int]*rowLine // by partition; one stays when it is empty
	turns []*rowLine       // those with rows, in the order of their turns
	turn  int              // index in turns of the next one; 0 if there is none
	taken []*consumer.Row  // by the last take
}

// rowLine is the queue of one partition, in stream order.
type rowLine struct{ rows []*consumer.Row }

func newRowQueue() *rowQueue { return &rowQueue{lines: make(map[int]*rowLine)} }

// add inserts a row in stream order: one that is started again may be older than those that wait.
func (q *rowQueue) add(row *consumer.Row) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[row.Partition]
	if l == nil {
		l = &rowLine{}
		q.lines[row.Partition] = l
	}
	if len(l.rows) == 0 { // in front of the one whose turn is next, which is behind all others
		q.turns = slices.Insert(q.turns, q.turn, l)
		q.turn = (q.turn + 1) % len(q.turns)
	}
	at := len(l.rows)
	if at > 0 && l.rows[at-1].Seq > row.Seq {
		at, _ = slices.BinarySearchFunc(l.rows, row.Seq, func(r *consumer.Row, seq uint64) int { return cmp.Compare(r.Seq, seq) })
	}
	l.rows = slices.Insert(l.rows, at, row)
}

// take takes out up to most rows, one of each partition in turn. It looks only at the first row of a partition: one
// that may not begin blocks those behind it. mayBegin is passed how many rows of the partition this call has taken
// before. The rows are valid until the next call.
func (q *rowQueue) take(most int, mayBegin func(row *consumer.Row, before int) bool) []*consumer.Row {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.taken) // else the queue would hold on to rows long emitted
	q.taken = q.taken[:0]
	for passed := 0; len(q.taken) < most && passed < len(q.turns); {
		l := q.turns[q.turn]
		row := l.rows[0]
		if !mayBegin(row, q.takenOf(row.Partition)) {
			q.turn = (q.turn + 1) % len(q.turns)
			passed++
			continue
		}
		passed = 0
		q.taken = append(q.taken, row)
		l.rows[0] = nil // as above
		if l.rows = l.rows[1:]; len(l.rows) > 0 {
			q.turn++
		} else {
			l.rows = nil
			q.turns = slices.Delete(q.turns, q.turn, q.turn+1)
		}
		if q.turn >= len(q.turns) {
			q.turn = 0
		}
	}
	return q.taken
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
		l.rows = slices.DeleteFunc(l.rows, func(row *consumer.Row) bool {
			if wanted(row) {
				return false
			}
			unwanted = append(unwanted, row)
			return true
		})
		return len(l.rows) == 0
	})
	if q.turn >= len(q.turns) {
		q.turn = 0
	}
	return unwanted
}
