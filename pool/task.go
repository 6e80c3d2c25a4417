package pool

import (
	"container/heap"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// task is a job without its types, as the scheduler handles it. While its call is in flight att, verdict, ended and exited
// belong to the worker, and the scheduler leaves them alone: another job's success may confirm failures of this one
// meanwhile. They change hands through channels.
type task struct {
	work     work
	lane     int    // see Laned
	index    uint64 // in the order of first attempts
	after    uint64 // a single attempt in line: jobs that go before it, counted as line.left does
	server   int    // where it waits; an attempt may go to a later one while this one has no capacity
	att      Attempt
	arrived  time.Time // see Dated
	started  time.Time // the first attempt
	deadline time.Time // in running time, see scheduler.expired; zero: none
	ready    time.Time // not to be attempted before
	wake     time.Time // while delayed: when to look at it next
	next     *task     // in a fifo
	failures int       // of its attempts at server, as far as they are its own; att has those of when it was sent
	doubt    suspicion // about its failures
	marked   bool      // it has failed, in doubt or not
	suspect  bool      // it has failed in an outage that was none, see closeBreaker
	seen     uint64    // successes of the server when the last attempt went
	probed   int       // its last probe, by scheduler.probes; 0: none
	seq      uint64    // of its last attempt, among those at the server
	slot     int       // while it is in flight: its place in server.inFlight

	ticket  aimd.Ticket
	weighed int64 // for the gates, when the attempt was sent
	verdict Verdict
	ended   time.Time // when the last call ended
	exited  bool      // the call ended its worker too

	once    bool        // one attempt is all: see Once
	claimed atomic.Bool // with once: by the attempt or by the caller who gives up, whoever comes first
}

// work is the typed part of a task.
type work interface {
	attempt(ctx context.Context, a Attempt) Verdict
	weight(server int) int64
	finish(err error, class Class, finished time.Time, stats Stats)
}

// fifo is a queue of tasks linked through next, so that waiting costs no memory but the tasks' own.
type fifo struct {
	head, tail *task
	size       int
}

func (q *fifo) push(t *task) {
	if q.head == nil {
		q.head = t
	} else {
		q.tail.next = t
	}
	q.tail = t
	q.size++
}

func (q *fifo) pop() *task {
	t := q.head
	q.head, t.next = t.next, nil
	q.size--
	return t
}

// taskHeap is a heap of tasks whose first is the least by less.
type taskHeap struct {
	tasks []*task
	less  func(a, b *task) bool
}

func (h *taskHeap) push(t *task) { heap.Push((*byHeap)(h), t) }

func (h *taskHeap) pop() *task { return heap.Pop((*byHeap)(h)).(*task) }

// first returns the least task, or nil.
func (h *taskHeap) first() *task {
	if len(h.tasks) == 0 {
		return nil
	}
	return h.tasks[0]
}

// remove takes out the tasks that match and returns them.
func (h *taskHeap) remove(match func(*task) bool) (removed []*task) {
	kept := h.tasks[:0]
	for _, t := range h.tasks {
		if match(t) {
			removed = append(removed, t)
		} else {
			kept = append(kept, t)
		}
	}
	clear(h.tasks[len(kept):]) // let them go
	h.tasks = kept
	heap.Init((*byHeap)(h))
	return removed
}

// take takes t out.
func (h *taskHeap) take(t *task) {
	if i := slices.Index(h.tasks, t); i >= 0 {
		heap.Remove((*byHeap)(h), i)
	}
}

// oldest returns the least task that matches, or nil.
func (h *taskHeap) oldest(match func(*task) bool) (found *task) {
	for _, t := range h.tasks {
		if match(t) && (found == nil || h.less(t, found)) {
			found = t
		}
	}
	return found
}

func older(a, b *task) bool { return a.index < b.index }

func wakesEarlier(a, b *task) bool { return a.wake.Before(b.wake) }

// byHeap is the side of a taskHeap that container/heap sees.
type byHeap taskHeap

func (h *byHeap) Len() int           { return len(h.tasks) }
func (h *byHeap) Less(i, j int) bool { return h.less(h.tasks[i], h.tasks[j]) }
func (h *byHeap) Swap(i, j int)      { h.tasks[i], h.tasks[j] = h.tasks[j], h.tasks[i] }
func (h *byHeap) Push(t any)         { h.tasks = append(h.tasks, t.(*task)) }
func (h *byHeap) Pop() any {
	last := len(h.tasks) - 1
	t := h.tasks[last]
	h.tasks[last] = nil // let it go
	h.tasks = h.tasks[:last]
	return t
}
