package pool

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool/internal/health"
)

// task is a job without its types, as the scheduler handles it. While its call is in
// flight att, verdict, ended and exited belong to the worker, and the scheduler leaves
// them alone. They change hands through crew.work and the inbox. Its health may change
// meanwhile, because another job's success may confirm failures of this one.
type task struct {
	health.Job // at which server it waits, and which of its failures count

	work  work
	index uint64 // in the order of first attempts; unset before

	// These say how the task waits. It is in one queue at most, and next is set in a fifo
	// only.
	next     *task
	arrived  time.Time // see Traits.Arrived
	started  time.Time // the first attempt; zero before
	deadline time.Time // in the running time of clock; zero if there is none
	ready    time.Time // while delayed: its next attempt at its server goes no earlier
	wake     time.Time // while delayed: when to look at it next, not after ready
	until    time.Time // it waits no longer than that for the success of another job

	// needsWitness says, while delayed, that its backoff is over and that it waits for the
	// success of another job, see scheduler.cameDue.
	needsWitness bool

	// These describe the last attempt, and are set when it goes.
	att     Attempt
	ticket  aimd.Ticket
	weighed int64 // by the gates

	// These say how it ended, and are set by the worker.
	verdict Verdict
	ended   time.Time
	exited  bool // the call ended its worker too
}

// Weight implements [health.Owner].
func (t *task) Weight(server int) int64 { return t.work.weight(server) }

// work is the typed part of a task.
type work interface {
	attempt(ctx context.Context, a Attempt) Verdict
	weight(server int) int64
	finish(err error, class Class, finished time.Time, stats Stats)
}

// fifo is a queue of tasks linked through next, so that waiting costs no memory beyond
// the tasks' own.
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

// take takes out t, which is in the queue and mostly its first.
func (q *fifo) take(t *task) {
	if t == q.head {
		q.pop()
		return
	}
	q.remove(func(other *task) bool { return other == t })
}

// remove takes out the tasks that match and returns them.
func (q *fifo) remove(match func(*task) bool) (removed []*task) {
	all := *q
	*q = fifo{}
	for all.head != nil {
		if t := all.pop(); match(t) {
			removed = append(removed, t)
		} else {
			q.push(t)
		}
	}
	return removed
}

// taskHeap is a heap of tasks whose first is the least by less. Its exported methods are
// for container/heap.
type taskHeap struct {
	tasks []*task
	less  func(a, b *task) bool
}

func (h *taskHeap) push(t *task) { heap.Push(h, t) }

func (h *taskHeap) pop() *task { return heap.Pop(h).(*task) }

func (h *taskHeap) first() *task {
	if len(h.tasks) == 0 {
		return nil
	}
	return h.tasks[0]
}

// remove takes out the tasks that match and returns them.
func (h *taskHeap) remove(match func(*task) bool) []*task {
	removed := extract(&h.tasks, match)
	heap.Init(h)
	return removed
}

// extract deletes the tasks that match from a list and returns them.
func extract(list *[]*task, match func(*task) bool) (removed []*task) {
	*list = slices.DeleteFunc(*list, func(t *task) bool {
		if match(t) {
			removed = append(removed, t)
			return true
		}
		return false
	})
	return removed
}

// take takes t out, and reports whether it was there.
func (h *taskHeap) take(t *task) bool {
	i := slices.Index(h.tasks, t)
	if i >= 0 {
		heap.Remove(h, i)
	}
	return i >= 0
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

func (h *taskHeap) Len() int           { return len(h.tasks) }
func (h *taskHeap) Less(i, j int) bool { return h.less(h.tasks[i], h.tasks[j]) }
func (h *taskHeap) Swap(i, j int)      { h.tasks[i], h.tasks[j] = h.tasks[j], h.tasks[i] }
func (h *taskHeap) Push(t any)         { h.tasks = append(h.tasks, t.(*task)) }
func (h *taskHeap) Pop() any {
	last := len(h.tasks) - 1
	t := h.tasks[last]
	h.tasks[last] = nil // for the garbage collector
	h.tasks = h.tasks[:last]
	return t
}
