package executor

import (
	"cmp"
	"slices"
	"sync"

	"github.com/llm-stage/stage/consumer"
)

// rowQueue holds the rows that wait for the pool: those of a partition in stream order. Partitions take turns, so that one
// with a full window does not keep the others waiting. The windows bound it. Safe for concurrent use.
type rowQueue struct {
	mu    sync.Mutex
	of    map[int]*rowLine // by partition
	turns []*rowLine       // those with rows
	turn  int              // whose turn is next
	taken []*consumer.Row
}

type rowLine struct{ rows []*consumer.Row }

func newRowQueue() *rowQueue { return &rowQueue{of: make(map[int]*rowLine)} }

// add puts a row in its place: one that is started again may be older than those that wait.
func (q *rowQueue) add(row *consumer.Row) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[row.Partition]
	if l == nil {
		l = &rowLine{}
		q.of[row.Partition] = l
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

// take takes out up to most rows, one of each partition in turn. It looks only at the first row of a partition: what may
// not begin holds those behind it. May is given the number of the partition's rows that have been taken before. The rows
// are valid until the next call.
func (q *rowQueue) take(most int, may func(row *consumer.Row, before int) bool) []*consumer.Row {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.taken) // rows that have long been emitted
	q.taken = q.taken[:0]
	for passed := 0; len(q.taken) < most && passed < len(q.turns); {
		l := q.turns[q.turn]
		row := l.rows[0]
		if !may(row, q.takenOf(row.Partition)) {
			q.turn = (q.turn + 1) % len(q.turns)
			passed++
			continue
		}
		passed = 0
		q.taken = append(q.taken, row)
		l.rows[0] = nil // else the queue would hold on to it
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

func (q *rowQueue) takenOf(partition int) (n int) {
	for _, row := range q.taken {
		if row.Partition == partition {
			n++
		}
	}
	return n
}

// recall takes out the rows that are no longer wanted. It asks once for each: the answer may change at any time, and a row
// that was found wanted first and unwanted then would be taken out and handed back to nobody.
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
