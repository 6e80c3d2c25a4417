package recorder

import (
	"slices"
	"time"
)

// queue holds the events that were not sent yet, oldest first, and decides when they go.
// [room] bounds how many of them are call events; the window and the batch lane bound the
// others.
//
// Two things delay an event, both by a few milliseconds: where events come fast they
// gather (see [pace]), and the call events of a row wait for the event of the row itself.
type queue struct {
	records []*record
	last    uint64 // number of the last event that was added
	pace    pace
	// rowDue is until when a queue that holds nothing but a few call events of rows
	// waits. The row waits for both its events, and its own follows the last call event
	// in a fraction of a millisecond, so both go in one write and are answered in one
	// read.
	rowDue time.Time
}

func (q *queue) len() int { return len(q.records) }

// add numbers an event and appends it. rowFollows says that it is the event of a call,
// and that the event of the call's row is likely to follow.
func (q *queue) add(rec *record, rowFollows bool, now time.Time) {
	q.last++
	rec.number = q.last
	switch {
	case !rowFollows:
		q.rowDue = time.Time{}
	case len(q.records) == 0:
		q.rowDue = now.Add(gatherFor)
	}
	q.records = append(q.records, rec)
}

// waitForRow reports whether the events wait for the event of their row. If so, the queue
// wakes the Recorder when they have waited for long enough.
func (q *queue) waitForRow(now time.Time) bool {
	if len(q.records) >= gatherFew || !now.Before(q.rowDue) {
		return false
	}
	q.pace.wakeAfter(q.rowDue.Sub(now))
	return true
}

// mayGo reports whether the events may go now; see [pace.mayGo].
func (q *queue) mayGo(now time.Time) bool { return q.pace.mayGo(now, len(q.records)) }

// remove takes out the n oldest events. The caller must have copied them.
func (q *queue) remove(n int) { q.records = slices.Delete(q.records, 0, n) }
