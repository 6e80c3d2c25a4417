package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/llm-stage/stage/internal/hold"
)

// Waiter is what an [Executor] is that knows why a row which it has started waits.
// RowHold must be safe for concurrent use; it returns soon, or when ctx ends.
type Waiter interface {
	RowHold(ctx context.Context, row *Row) hold.Hold
}

// kindOf has the kind of each area of [problems].
var kindOf = map[string]hold.Kind{
	problemConnection: hold.Connection, problemOwnership: hold.Ownership, problemResults: hold.Results,
	problemDeadLetter: hold.DeadLetter, problemRows: hold.Undelivered, problemAway: hold.Unread, problemPut: hold.ObjectStore, problemGet: hold.ObjectStore,
}

// holds returns the problems as reasons why the rows of a partition wait.
func (p *problems) holds(partition int) (list []hold.Hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for area, problem := range p.why {
		h := hold.OfPartition(partition, kindOf[area])
		h.Why, h.Since = problem.why, problem.since
		list = append(list, h)
	}
	order := hold.Kinds()
	slices.SortFunc(list, func(a, b hold.Hold) int { return slices.Index(order, a.Kind) - slices.Index(order, b.Kind) })
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

// status returns what holds now. What held before keeps its time.
func (t *term) status(before termStatus) (s termStatus) {
	since := func(is bool, before time.Time) time.Time {
		switch {
		case !is:
			return time.Time{}
		case before.IsZero():
			return time.Now()
		}
		return before
	}
	s.uncertain = t.own.uncertainSince
	s.handOver = since(t.released, before.handOver)
	s.reading = since(t.journal.earlier.waiting, before.reading)
	if !t.stopping {
		s.fullOf = t.fullOf()
	}
	s.full = since(s.fullOf != "", before.full)
	return s
}

// fullOf returns what the window has no room for, or empty. There is no room for bytes as
// well where the next row is larger than what is left.
func (t *term) fullOf() string {
	switch room := t.buf.Room(); {
	case room <= 0:
		return "rows"
	case t.lane != nil && t.buf.Parked() >= t.c.cfg.LaneRows:
		return hold.LaneRows
	case t.roomBeside(room) <= 0: // the rest is for rows that come back from the lane
		return "rows"
	case t.buf.RoomBytes() <= 0, t.buf.Len() > 0 && t.in.pull.full:
		return "bytes"
	}
	return ""
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

// whereabouts is where a row is: it waits for hold, or the executor has it.
type whereabouts struct {
	hold     *hold.Hold
	executor *Row
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

// whyWaits returns what a row waits for, or that the executor has it.
func (t *term) whyWaits(seq uint64) whereabouts {
	note, aside := t.buf.Away(seq)
	row := t.open[seq]
	switch {
	case t.buf.Finished(seq):
		return whereabouts{}
	case note != nil:
		return t.awayHold(seq, note, aside)
	case row == nil && seq > t.in.accepted:
		return t.rowHold(seq, hold.Pending, t.gauges.term.fullOf)
	case row == nil && slices.ContainsFunc(t.takenBack, func(r *Row) bool { return r.Seq == seq }):
		return t.rowHold(seq, hold.HandOver, "")
	case row == nil: // no row of this partition
		return whereabouts{}
	case row.term.done || row.answered:
		return t.answeredHold(row)
	case slices.Contains(t.unstarted, row):
		return t.unstartedHold(row)
	}
	return whereabouts{executor: row}
}

// rowHold returns that a row waits for this.
func (t *term) rowHold(seq uint64, kind hold.Kind, by string) whereabouts {
	h := hold.OfRow(seq, kind)
	h.By = by
	if row := t.open[seq]; row != nil {
		h.Since = row.Taken
		if row.term.done {
			h.Since = row.reply.Event.FinishedAt
		}
	}
	return whereabouts{hold: &h}
}

// awayHold is what a row waits for of which only the place is kept: an earlier row of its
// key, its batch or, once it is answered, whatever an answered row waits for.
func (t *term) awayHold(seq uint64, note *place, aside bool) whereabouts {
	coming := t.returns.coming[seq]
	answered := t.buf.Due(seq) || note.kept
	before, waits := t.buf.WaitsFor(seq)
	by := "row " + hold.RowName(before)
	switch {
	case coming != nil && t.problem(hold.Unread) != nil:
		return t.problemHold(seq, t.problem(hold.Unread))
	case aside && waits:
		return t.rowHold(seq, hold.SetAside, by)
	case aside:
		return t.rowHold(seq, hold.SetAside, "")
	case answered && waits:
		return t.rowHold(seq, hold.Order, by)
	case answered:
		return t.rowHold(seq, hold.Storing, "its reply, which is read again")
	}
	return t.rowHold(seq, hold.Batch, "")
}

// problem returns the first problem of one of these kinds, or nil.
func (t *term) problem(kinds ...hold.Kind) *hold.Hold {
	list := hold.List(t.c.problems.holds(t.c.cfg.Partition))
	return list.First(func(h *hold.Hold) bool { return slices.Contains(kinds, h.Kind) })
}

// problemHold returns that a row waits because of a problem of its partition.
func (t *term) problemHold(seq uint64, problem *hold.Hold) whereabouts {
	at := t.rowHold(seq, problem.Kind, "")
	at.hold.Why, at.hold.Since = problem.Why, problem.Since
	return at
}

// answeredHold is what a row waits for that is answered: an earlier row, its reply to be
// in the journal before it is parked, its events, or the append of its result.
func (t *term) answeredHold(row *Row) whereabouts {
	before, waits := t.buf.WaitsFor(row.Seq)
	problem := t.problem(hold.Results, hold.DeadLetter)
	switch {
	case waits:
		return t.rowHold(row.Seq, hold.Order, "row "+hold.RowName(before))
	case row.form.putting && t.problem(hold.ObjectStore) != nil:
		return t.problemHold(row.Seq, t.problem(hold.ObjectStore))
	case row.form.putting:
		return t.rowHold(row.Seq, hold.Storing, "its body")
	case !row.term.done:
		return t.rowHold(row.Seq, hold.Storing, "its reply")
	case !row.emittable() && row.shared.recorder.Refused():
		return t.rowHold(row.Seq, hold.Audit, "")
	case !row.emittable():
		return t.rowHold(row.Seq, hold.Storing, "its audit events")
	case problem != nil:
		return t.problemHold(row.Seq, problem)
	}
	return t.rowHold(row.Seq, hold.Storing, "its result")
}

// unstartedHold is what a row waits for that is taken and was not given to the executor.
func (t *term) unstartedHold(row *Row) whereabouts {
	switch {
	case t.stopping:
		return t.rowHold(row.Seq, hold.HandOver, "")
	case t.c.steer.paused.Load():
		return t.rowHold(row.Seq, hold.Operator, "")
	case t.c.storable.full.Load() != nil:
		return t.rowHold(row.Seq, hold.Store, "")
	case t.c.storable.unstowed.Load(), row.term.fetching && t.problem(hold.ObjectStore) != nil:
		if problem := t.problem(hold.ObjectStore); problem != nil {
			return t.problemHold(row.Seq, problem)
		}
		return t.rowHold(row.Seq, hold.ObjectStore, "")
	case t.c.storable.refused.Load():
		if problem := t.problem(hold.Results, hold.DeadLetter); problem != nil {
			return t.problemHold(row.Seq, problem)
		}
		return t.rowHold(row.Seq, hold.Results, "")
	case row.shared.recorder.Refused():
		return t.rowHold(row.Seq, hold.Audit, "")
	case !t.own.certain():
		return t.rowHold(row.Seq, hold.Uncertain, "")
	}
	return t.rowHold(row.Seq, hold.Reading, "")
}
