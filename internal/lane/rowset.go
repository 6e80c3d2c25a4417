package lane

import (
	"container/heap"

	"github.com/llm-stage/stage/internal/seqset"
)

// rowSet is a set of rows that knows how many it has. Adjacent rows share their memory
// (see [seqset.Set]), so a million rows that wait take little.
type rowSet struct {
	set seqset.Set
	n   int
}

func (s *rowSet) add(seq uint64) bool {
	if !s.set.Add(seq) {
		return false
	}
	s.n++
	return true
}

func (s *rowSet) remove(seq uint64) bool {
	if !s.set.Remove(seq) {
		return false
	}
	s.n--
	return true
}

func (s *rowSet) has(seq uint64) bool { return s.n > 0 && s.set.Has(seq) }

// take removes the lowest n rows and returns them.
func (s *rowSet) take(n int) []uint64 {
	if n = min(n, s.n); n <= 0 {
		return nil
	}
	rows := make([]uint64, 0, n)
	for seq := range s.set.All() {
		if rows = append(rows, seq); len(rows) == n {
			break
		}
	}
	for _, seq := range rows {
		s.remove(seq)
	}
	return rows
}

// first returns the lowest row, and false if there is none.
func (s *rowSet) first() (uint64, bool) {
	if s.n > 0 {
		for seq := range s.set.All() {
			return seq, true
		}
	}
	return 0, false
}

// triedRows counts in how many batches rows were before. more[n] has the rows that were in
// more than n of them: a row that was in two is in more[0] and more[1]. Most rows were in
// none, and take no memory.
type triedRows struct {
	more [triesMax]rowSet
}

func (t *triedRows) count(seq uint64) (n uint8) {
	for n < triesMax && t.more[n].has(seq) {
		n++
	}
	return n
}

// set raises the count of a row to n, or to as many as are counted.
func (t *triedRows) set(seq uint64, n uint8) {
	for i := range min(n, triesMax) {
		t.more[i].add(seq)
	}
}

func (t *triedRows) remove(seq uint64) {
	for i := range t.more {
		t.more[i].remove(seq)
	}
}

// deadline is when a row goes live, in Unix milliseconds.
type deadline struct {
	at  int64
	seq uint64
}

// deadlines are the deadlines of rows, the next first, each row once.
type deadlines struct {
	queue deadlineHeap
	rows  rowSet
}

func (d *deadlines) add(seq uint64, at int64) {
	if at != 0 && d.rows.add(seq) {
		heap.Push(&d.queue, deadline{at: at, seq: seq})
	}
}

// next returns the earliest deadline.
func (d *deadlines) next() (deadline, bool) {
	if len(d.queue) == 0 {
		return deadline{}, false
	}
	return d.queue[0], true
}

func (d *deadlines) pop() {
	d.rows.remove(heap.Pop(&d.queue).(deadline).seq)
}

type deadlineHeap []deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h deadlineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *deadlineHeap) Push(x any)        { *h = append(*h, x.(deadline)) }
func (h *deadlineHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
