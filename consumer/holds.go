package consumer

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/llm-stage/stage/internal/hold"
)

// Waiter is an [Executor] that knows why a row which it has started waits. RowHold must be
// safe for concurrent use; it returns soon, or when ctx ends.
type Waiter interface {
	RowHold(ctx context.Context, row *Row) hold.Hold
}

// kindOf has the kind of each area of [problems].
var kindOf = map[string]hold.Kind{
	problemConnection: hold.Connection, problemOwnership: hold.Ownership, problemResults: hold.Results,
	problemDeadLetter: hold.DeadLetter, problemUndelivered: hold.Undelivered, problemUnread: hold.Unread,
	problemPut: hold.ObjectStore, problemGet: hold.ObjectStore,
}

// holds returns the problems as reasons why the rows of a partition wait. They are in the
// order of their kinds, and within a kind in the order of their areas.
func (p *problems) holds(partition int) (list []hold.Hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, area := range slices.Sorted(maps.Keys(p.why)) {
		h := hold.OfPartition(partition, kindOf[area])
		h.Why, h.Since = p.why[area].why, p.why[area].since
		list = append(list, h)
	}
	order := hold.Kinds()
	slices.SortStableFunc(list, func(a, b hold.Hold) int {
		return cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind))
	})
	return list
}

// termStatus is what a term publishes of the reasons that make all its rows wait. Each is
// since when, or zero.
type termStatus struct {
	uncertain time.Time // it is not known whether the partition is still ours
	handOver  time.Time // it goes to another replica
	reading   time.Time // replies that an earlier owner has kept are being read
	full      time.Time // the window has no room for another row
	fullOf    string    // what there is no room for
}

// holds returns why the rows of the partition wait, where p are its problems.
func (s *Status) holds(p *problems) []hold.Hold {
	list := p.holds(s.Partition)
	add := func(kind hold.Kind, by string, since time.Time) {
		h := hold.OfPartition(s.Partition, kind)
		h.By, h.Since = by, since
		list = append(list, h)
	}
	switch s.Role {
	case Stopped:
		add(hold.Stopping, "", time.Time{})
	case Starting:
		add(hold.Starting, "", time.Time{})
	case Standby:
		if s.Taking {
			add(hold.Reading, "", time.Time{})
		} else {
			add(hold.Standby, "", time.Time{})
		}
	case Owner:
		for _, of := range []struct {
			kind  hold.Kind
			by    string
			since time.Time
		}{
			{hold.HandOver, "", s.term.handOver},
			{hold.Uncertain, "", s.term.uncertain},
			{hold.Reading, "", s.term.reading},
			{hold.Window, s.term.fullOf, s.term.full},
		} {
			if !of.since.IsZero() {
				add(of.kind, of.by, of.since)
			}
		}
	}
	return list
}

// question asks a term why a row waits.
type question struct {
	seq    uint64
	answer chan<- whereabouts // has room for it
}

// whereabouts is where a row is. The zero value says that nothing is known of it, or that it
// has its result.
type whereabouts struct {
	hold     *hold.Hold // what it waits for
	executor *Row       // the row, which the executor has
}

// RowHold returns why a row of the partition has no result yet: exactly one reason, of a
// row that is taken. It returns nil for a row that has its result, and where this replica
// does not serve the partition. A row behind the last one taken is pending, whether it
// exists or not: the caller knows. It waits for the goroutine of the term, which answers
// between two steps, or until ctx ends. Safe for concurrent use.
func (c *Consumer) RowHold(ctx context.Context, seq uint64) *hold.Hold {
	if c.Status().Role != Owner {
		return nil
	}
	answer := make(chan whereabouts, 1)
	select {
	case c.questions <- question{seq, answer}:
	case <-ctx.Done():
		return nil
	}
	at := <-answer
	if at.executor == nil {
		return at.hold
	}
	h := hold.OfRow(seq, hold.Turn)
	if w, ok := c.cfg.Executor.(Waiter); ok {
		h = w.RowHold(ctx, at.executor)
	}
	return &h
}

// inquiry looks for what one row waits for. It reads the parts of a term, and changes
// nothing.
type inquiry struct {
	t   *term
	seq uint64
	row *Row // nil where it is not open
}

// answer returns the hold that the row waits for, or that the executor has the row.
func (q *inquiry) answer() whereabouts {
	t := q.t
	note, aside := t.window.buf.Away(q.seq)
	switch row := q.row; {
	case t.window.buf.Finished(q.seq):
		return whereabouts{}
	case note != nil:
		return q.away(note, aside)
	case row == nil && q.seq > t.in.accepted:
		return q.hold(hold.Pending, t.gauges.term.fullOf)
	case row == nil && slices.ContainsFunc(t.window.takenBack, func(r *Row) bool { return r.Seq == q.seq }):
		return q.takenBack()
	case row == nil: // no row of this partition
		return whereabouts{}
	case row.inTerm.done || row.answered:
		return q.answered()
	case slices.Contains(t.unstarted, row):
		return q.unstarted()
	}
	return whereabouts{executor: q.row}
}

// takenBack returns the hold of a row that the stopping term has given up.
func (q *inquiry) takenBack() whereabouts {
	if q.t.released {
		return q.hold(hold.HandOver, "")
	}
	return q.hold(hold.Stopping, "")
}

// away returns the hold of a row that is away. It waits for an earlier row of its key, for
// its batch or, once it is answered, for what any answered row waits for.
func (q *inquiry) away(note *place, aside bool) whereabouts {
	t := q.t
	coming := t.returns.coming[q.seq]
	answered := t.window.buf.Due(q.seq) || note.kept
	before, waits := t.window.buf.WaitsFor(q.seq)
	by := "row " + hold.RowName(before)
	switch {
	case coming != nil && q.problem(hold.Unread) != nil:
		return q.blocked(q.problem(hold.Unread))
	case aside && waits:
		return q.hold(hold.SetAside, by)
	case aside:
		return q.hold(hold.SetAside, "")
	case answered && waits:
		return q.hold(hold.Order, by)
	case answered:
		return q.hold(hold.Storing, "its reply, which is read again")
	}
	return q.hold(hold.Batch, "")
}

// answered returns the hold of an answered row. It waits for an earlier row, for its reply
// to be in the journal before it is parked, for its events, or for the append of its
// result.
func (q *inquiry) answered() whereabouts {
	before, waits := q.t.window.buf.WaitsFor(q.row.Seq)
	problem := q.problem(hold.Results, hold.DeadLetter)
	switch {
	case waits:
		return q.hold(hold.Order, "row "+hold.RowName(before))
	case q.row.form.putting && q.problem(hold.ObjectStore) != nil:
		return q.blocked(q.problem(hold.ObjectStore))
	case q.row.form.putting:
		return q.hold(hold.Storing, "its body")
	case !q.row.inTerm.done:
		return q.hold(hold.Storing, "its reply")
	case !q.row.emittable() && q.row.shared.recorder.Refused():
		return q.hold(hold.Audit, "")
	case !q.row.emittable():
		return q.hold(hold.Storing, "its audit events")
	case problem != nil:
		return q.blocked(problem)
	}
	return q.hold(hold.Storing, "its result")
}

// unstarted returns the hold of a row that is taken and was not given to the executor. The
// term is not stopping, or it would have taken the row back.
func (q *inquiry) unstarted() whereabouts {
	t := q.t
	switch {
	case t.c.steer.paused.Load():
		return q.hold(hold.Operator, "")
	case t.c.storable.full.Load() != nil:
		return q.hold(hold.Store, "")
	case t.c.storable.unstowed.Load(), q.row.inTerm.fetching && q.problem(hold.ObjectStore) != nil:
		if problem := q.problem(hold.ObjectStore); problem != nil {
			return q.blocked(problem)
		}
		return q.hold(hold.ObjectStore, "")
	case t.c.storable.refused.Load():
		if problem := q.problem(hold.Results, hold.DeadLetter); problem != nil {
			return q.blocked(problem)
		}
		return q.hold(hold.Results, "")
	case q.row.shared.recorder.Refused():
		return q.hold(hold.Audit, "")
	case !t.own.certain():
		return q.hold(hold.Uncertain, "")
	}
	return q.hold(hold.Reading, "")
}

// hold returns that a row waits for this.
func (q *inquiry) hold(kind hold.Kind, by string) whereabouts {
	h := hold.OfRow(q.seq, kind)
	h.By = by
	if q.row != nil {
		h.Since = q.row.Taken
		if q.row.inTerm.done {
			h.Since = q.row.reply.Event.FinishedAt
		}
	}
	return whereabouts{hold: &h}
}

// blocked returns that a row waits because of a problem of its partition.
func (q *inquiry) blocked(problem *hold.Hold) whereabouts {
	at := q.hold(problem.Kind, "")
	at.hold.Why, at.hold.Since = problem.Why, problem.Since
	return at
}

// problem returns the first problem of one of these kinds, or nil.
func (q *inquiry) problem(kinds ...hold.Kind) *hold.Hold {
	list := hold.List(q.t.c.problems.holds(q.t.c.cfg.Partition))
	return list.First(func(h *hold.Hold) bool { return slices.Contains(kinds, h.Kind) })
}
