package pool

import "time"

// queue is the jobs that wait for their first or next attempt. Between turns of the
// scheduler's loop a job that is not in flight is in exactly one of its lines, and the
// inbox counts it: from there callers see whether there is room for another.
type queue struct {
	fresh   fifo       // jobs without an attempt, as they came
	ready   []taskHeap // by server, the jobs that wait there and may have their next attempt, oldest first
	delayed taskHeap   // jobs that must wait for theirs, by the instant to look at them again

	indexes uint64 // assigned so far; they rise in the order of first attempts
	inbox   *inbox
	vacated bool // a job has left since Config.OnRoom was called last
}

func newQueue(servers int, in *inbox) queue {
	q := queue{ready: make([]taskHeap, servers), delayed: taskHeap{less: wakesEarlier}, inbox: in}
	for i := range q.ready {
		q.ready[i].less = older
	}
	return q
}

// size counts the jobs that wait.
func (q *queue) size() int { return q.fresh.size + q.started() }

// started counts the waiting jobs that have had an attempt.
func (q *queue) started() int {
	n := len(q.delayed.tasks)
	for i := range q.ready {
		n += len(q.ready[i].tasks)
	}
	return n
}

// makeReady puts t, which waits already, in the line of its server.
func (q *queue) makeReady(t *task) { q.ready[t.Server()].push(t) }

// putBack puts t in line for another attempt at once, because the last one does not count.
func (q *queue) putBack(t *task) {
	q.inbox.occupy()
	q.makeReady(t)
}

// take takes t out of its line for an attempt.
func (q *queue) take(t *task, now time.Time) {
	q.vacate(t)
	if !t.started.IsZero() {
		q.ready[t.Server()].take(t)
		return
	}
	q.fresh.take(t)
	t.index = q.indexes
	q.indexes++
	t.started = now
}

// vacate records that t waits no longer. It is called for each task that is taken out of
// its line for good.
func (q *queue) vacate(t *task) {
	q.inbox.vacate(t.started.IsZero())
	q.vacated = true
}

// remove takes out the jobs that match and returns them. They wait no longer.
func (q *queue) remove(match func(*task) bool) []*task {
	removed := append(q.fresh.remove(match), q.delayed.remove(match)...)
	for i := range q.ready {
		removed = append(removed, q.ready[i].remove(match)...)
	}
	for _, t := range removed {
		q.vacate(t)
	}
	return removed
}

// firstFresh returns the new job that may be the first to probe, or nil: the first that is
// no single attempt. A single attempt whose probe fails would have failed for its caller.
func (q *queue) firstFresh() *task {
	t := q.fresh.head
	for t != nil && t.Single {
		t = t.next
	}
	return t
}

// leastRefused returns the ready job of a server that was refused least often, of several
// the oldest, or nil.
func (q *queue) leastRefused(server int) (least *task) {
	for _, t := range q.ready[server].tasks {
		if least == nil || t.Refusals() < least.Refusals() ||
			t.Refusals() == least.Refusals() && older(t, least) {
			least = t
		}
	}
	return least
}
