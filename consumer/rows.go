package consumer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A row's way, in the order in which it happens: request, received, accept, take, start,
// the executor's work (see [Row]), collect, complete, emit, the emitter's append (see
// emitter), and emitted, which acks it. comeBack is accept for a row that was away.

// request asks for the rows that there is room for; a stopping term asks for none and
// renews its pin.
func (t *term) request(now time.Time) (next time.Time, err error) {
	if t.in.resets() {
		return t.in.resetAt, nil
	}
	if t.stopping || t.bodies.forKey != 0 {
		return t.in.pull.step(now, 0, 0, false)
	}
	rows := t.window.room()
	if t.window.plenty(rows) && now.Sub(t.in.pull.asked) < t.in.pull.renew {
		return t.in.pull.asked.Add(t.in.pull.renew), nil
	}
	asked := t.in.pull.asked
	// A row that is larger than the room left is asked for by itself once the window is
	// empty, but not while there is no room for any row, such as in a full lane.
	empty := rows > 0 && t.window.buf.Len()+t.window.buf.Returning() == 0
	putOff := t.in.pull.notUntil.After(t.in.pull.asked) // the last request, perhaps because the next row is too large
	next, err = t.in.pull.step(now, rows, t.window.roomBytes(), empty && putOff)
	if t.in.pull.asked != asked {
		t.acks.flush() // in the same write
	}
	if watch := t.in.lookDue(); rows > 0 && watch.Before(next) && watch.After(now) {
		next = watch
	}
	return next, err
}

// received takes one message of the pull request: a row, or a status message.
//
// A row that brings another pin than the last one had is no proof that the partition is
// still ours:
//
//	A's pin runs out. B claims, and resets the consumer.
//	A's request is the one that waits, so A gets the row and the pin.
//	A renews it, and B, who owns the log, gets no row until A learns that it is fenced.
func (t *term) received(ctx context.Context, m *nats.Msg) error {
	row, err := t.in.pull.received(m, time.Now())
	switch {
	case err != nil:
		return err
	case row && t.in.pull.unnamed:
		return t.acceptUnnamed(ctx, m)
	case row && t.in.pull.pin != t.in.pin:
		if err := t.stillOurs(ctx); err != nil {
			return err
		}
		return t.accept(ctx, m)
	case row:
		return t.accept(ctx, m)
	case t.in.pull.pinLost:
		// Another client has the pin and may have claimed the partition, or none has: a
		// new leader forgets it.
		t.in.pull.pinLost = false
		return t.stillOurs(ctx)
	}
	return nil
}

// acceptUnnamed takes a row that does not name its pin: it is stored with bytes that are
// no headers, so the server's own header can't be read behind them. It may be of another
// pin than the last one, and proves nothing about the next.
func (t *term) acceptUnnamed(ctx context.Context, m *nats.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return nil //nolint:nilerr // not a delivery
	}
	if err := t.stillOurs(ctx); err != nil {
		return err
	}
	if t.in.pull.pin == "" { // without it, requests are not served until it runs out
		info, err := t.in.durable.Info(ctx)
		if err != nil {
			return err
		}
		t.in.pull.pin = pinned(info)
	}
	if m.Header, err = streams.StoredHeader(ctx, t.c.nc, t.c.cfg.InputStream, md.Sequence.Stream); err != nil {
		return fmt.Errorf("read the headers of row %d: %w", md.Sequence.Stream, err)
	}
	t.in.proveNothing()
	err = t.accept(ctx, m)
	t.in.proveNothing()
	return err
}

// accept takes a row that follows the last one taken, and nothing else: a row may be
// missing between them because the consumer was reset by another client, or a delivery
// got lost. Where the delivery does not prove that none is, the stream is asked.
func (t *term) accept(ctx context.Context, m *nats.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return nil //nolint:nilerr // not a delivery
	}
	seq := md.Sequence.Stream
	if cut, err := t.in.withoutBody(ctx, m, seq); err != nil {
		return err
	} else if cut {
		return t.reset(ctx)
	}
	t.in.ackForm = m.Reply
	proven := t.in.note(md, time.Now())
	switch {
	case t.stopping:
		return nil // the hand-over resets the consumer to it
	case t.bodies.forKey != 0:
		return nil // it comes again
	case seq <= t.in.accepted:
		return t.again(ctx, seq, md.NumDelivered, m.Reply)
	case seq != t.in.accepted+1 && !proven:
		missing, err := t.in.missingBefore(ctx, seq)
		if err != nil {
			return err
		}
		if missing != 0 {
			t.c.log.Info("rows are missing, resetting the consumer",
				slog.Uint64("sequence", seq), slog.Uint64("missing", missing))
			return t.reset(ctx)
		}
	}
	if t.window.buf.Known(seq) {
		return t.skip(seq, m.Reply)
	}
	if !t.bodies.keyKnown(seq, m) {
		return nil
	}
	// The known rows before it were deleted since they were emitted. They count in the
	// span, so whether there is room for the row is known only now.
	t.window.buf.Pass(seq)
	t.in.accepted = seq - 1
	row, size := t.rowOf(seq, stamped{m, md.Timestamp}), weight(m)
	index, err := t.window.enter(row, m.Reply, unansweredCounts*size)
	switch {
	case errors.Is(err, sequencer.ErrFull):
		// More than was asked for: a request that had been given up answered after all.
		// The row comes again.
		return t.reset(ctx)
	case errors.Is(err, errSetAside):
		t.in.accepted = seq
		return nil
	case err != nil:
		return fmt.Errorf("open row %d: %w", seq, err)
	}
	t.in.accepted = seq
	t.take(row, size, index, m.Reply)
	return nil
}

// skip passes over a row that was emitted before this term.
func (t *term) skip(seq uint64, reply string) error {
	if err := t.window.buf.Skip(seq); err != nil {
		return err
	}
	t.in.accepted = seq
	t.c.setStatus(func(s *Status) { s.Skipped++ })
	t.acks.send(reply)
	t.lane.kept(seq)
	return nil
}

// again handles the delivery of a row that was taken before.
func (t *term) again(ctx context.Context, seq, delivered uint64, reply string) error {
	if row := t.window.open[seq]; row != nil {
		row.inTerm.ackReply = reply // the server counts the newest delivery
	} else if t.window.deliveredAgain(seq, reply) {
		t.c.at("parked row came again")
	} else if t.window.finished(seq) {
		t.c.setStatus(func(s *Status) { s.Skipped++ })
		t.acks.send(reply)
	}
	if delivered > 1 || t.in.durable.AcksDelete {
		return nil // the ack wait was shortened, or rows behind the ack floor were acked one by one
	}
	t.c.log.Info("another client has reset the consumer, restoring its position",
		slog.Uint64("sequence", seq), slog.Uint64("after", t.in.accepted))
	return t.reset(ctx)
}

// take starts the work on a row that has entered the window.
func (t *term) take(row *Row, size int, index uint64, reply string) {
	known := t.c.carried.has(row)
	delete(t.c.carried.rows, row.Seq)
	row.inTerm.submitIndex, row.inTerm.ackReply, row.inTerm.size = index, reply, size
	row.inTerm.done, row.inTerm.itemBytes, row.inTerm.fetching = false, 0, false
	if row.elsewhere != nil { // its body may have been read in an earlier term
		t.window.weighBody(row)
	}
	row.forgetJournal()
	_, waits := t.window.buf.WaitsFor(row.Seq)
	row.leads.Store(!waits)
	row.tenure.Store(&tenure{owner: t.owner})
	row.wanted.Store(!t.paused)
	t.window.open[row.Seq] = row
	if !known {
		t.begun(row)
	}
	t.c.at("taken")
	for _, item := range row.answeredItems() { // in an earlier term, or since
		item.forgetJournal()
		t.itemAnswered(item)
	}
	idle := row.idle
	row.idle = false
	switch {
	case !known, idle:
		t.unstarted = append(t.unstarted, row)
		t.start()
	case row.answered:
		t.answered(row)
		t.emit()
	}
}

// comeBack takes a row into the window again that was away and is read, or forgets one
// that was deleted from the input. next is the row set aside whose turn it is now, or 0.
func (t *term) comeBack(seq uint64, back *comingBack) (next uint64, err error) {
	if back.gone {
		key, next, err := t.window.buf.Drop(seq)
		if err == nil {
			t.lane.kept(seq)
			t.window.lead(key)
		}
		return next, err
	}
	note, aside := t.window.buf.Away(seq)
	was := *note // the sequencer may use its place again
	index, next, err := t.window.buf.Return(seq)
	if err != nil {
		return 0, err
	}
	row := t.rowOf(seq, back.body)
	if !aside {
		row.inTerm.back, row.Errand, row.Kept = true, back.errand, back.kept
		row.Taken = t.c.pulse.born.Add(time.Duration(was.taken) * time.Second)
	}
	t.take(row, weight(back.body.Msg), index, t.in.ackOf(seq, &was.awayRow))
	row.journal.stored = back.kept != nil
	return next, nil
}

// stamped is a row's message, and when the input stream stored it.
type stamped struct {
	*nats.Msg
	arrived time.Time
}

// stamp returns a row that was read from the input stream by its sequence.
func stamp(raw *jetstream.RawStreamMsg) stamped {
	return stamped{&nats.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data}, raw.Time}
}

// rowOf returns the row of a message: one that is carried over from an earlier term, or a
// new one.
func (t *term) rowOf(seq uint64, m stamped) *Row {
	c := t.c
	if row := c.carried.rows[seq]; row != nil {
		return row
	}
	m.Header.Del(streams.HeaderPinID)
	row := &Row{
		Partition: c.cfg.Partition, Seq: seq, Arrived: m.arrived,
		Subject: m.Subject, Header: m.Header, Body: m.Data,
		StateID: auditlog.StateID(c.cfg.Name, c.cfg.InputStream, auditlog.Partition(c.cfg.Partition), seq),
		shared:  c.shared, elsewhere: elsewhere(m.Msg),
	}
	if key, known := t.bodies.keys[seq]; known {
		row.Key = key
	} else if c.order.byKey() {
		row.Key = c.cfg.Key(row)
	}
	return row
}

// begun completes a row that this process takes for the first time.
func (t *term) begun(row *Row) {
	c := t.c
	if row.Taken.IsZero() { // else it has come back from the lane
		row.Taken = time.Now()
	}
	if c.cfg.Tracer != nil {
		row.trace = c.cfg.Tracer.RowTaken(row)
	}
	room, _ := c.messages.room(row)
	row.MaxBodyBytes = max(room, c.messages.roomInBucket())
}

// start begins the work on unstarted rows, unless they must wait for the journal or the
// log to be read or for the end of a pause. A stopping term starts none, and takes them
// back.
func (t *term) start() {
	switch {
	case len(t.unstarted) == 0:
		return
	case t.stopping:
		for _, row := range t.unstarted {
			t.window.takeBack(row)
		}
	case t.paused || t.journal.earlier.waiting || !t.own.certain():
		return
	default:
		t.startRows(time.Now())
		return
	}
	clear(t.unstarted)
	t.unstarted = t.unstarted[:0]
}

// startRows starts rows in their order, as far as their kept replies and bodies are here.
// It ends at a row whose reply can't be asked for yet. Otherwise each answer that comes
// would cost a look at the whole window.
func (t *term) startRows(now time.Time) {
	looked := 0
	var waiting []*Row
look:
	for ; looked < len(t.unstarted); looked++ {
		switch row := t.unstarted[looked]; {
		case t.lane.parkStarted(row):
		case t.bodies.fetch(row) && (row.inTerm.back || t.journal.gets.restore(row, now)):
			t.c.cfg.Executor.Start(row)
		case row.inTerm.fetching || t.journal.gets.open[row.Seq] != nil || t.journal.gets.room():
			waiting = append(waiting, row)
		default:
			break look
		}
	}
	from := looked - len(waiting)
	copy(t.unstarted[from:looked], waiting)
	clear(t.unstarted[:from])
	t.unstarted = t.unstarted[from:]
}

// collect takes the answered rows into the sequencer.
func (t *term) collect() {
	rows := t.c.mail.take(t.spare)
	t.collected += len(rows)
	for _, row := range rows {
		switch {
		case row.element.parent != nil:
			t.itemAnswered(row)
		case !t.window.has(row):
			t.c.carried.answered(row)
			if t.c.carried.has(row) {
				t.journal.unkept.waitOf(row, time.Now())
			}
		case row.reply.Parked:
			t.lane.park(row, false)
		case !row.reply.HandedBack:
			t.answered(row)
		case t.stopping:
			t.window.takeBack(row)
		default:
			// Handed back in the moment between two terms, or while it was uncertain
			// whether the partition is still ours, or while it is paused.
			t.unstarted = append(t.unstarted, row)
		}
	}
	clear(rows)
	t.spare = rows
}

// itemAnswered takes the reply to an element. Where its row is not open, it counts in the
// window once the row is taken again, see also [unkept.waitOf].
func (t *term) itemAnswered(item *Row) {
	item.answered = true
	row := item.element.parent
	if !t.window.has(row) {
		if t.c.carried.has(row) {
			t.journal.unkept.waitOf(row, time.Now())
		}
		return
	}
	bytes := len(item.reply.Body)
	row.inTerm.itemBytes += bytes
	if !row.inTerm.done {
		t.window.grow(row.Seq, bytes)
	}
	t.journal.unkept.wait(item, time.Now())
	t.c.at("element answered")
}

// answered takes the reply to an open row.
func (t *term) answered(row *Row) {
	row.answered = true
	if t.stopping || !t.lane.takes(row) {
		t.complete(row)
	}
}

// complete puts the answer into the sequencer and records its row event. The event is
// stored before the result.
func (t *term) complete(row *Row) {
	t.c.messages.fit(row)
	bytes := row.inTerm.size + len(row.reply.Body) + row.inTerm.itemBytes
	index, err := t.window.buf.Complete(row.Seq, place{row: row}, bytes)
	if err != nil {
		panic(fmt.Sprintf("consumer: executor answered row %d twice: %v", row.Seq, err))
	}
	now := time.Now()
	if row.reply.Event.FinishedAt.IsZero() {
		row.reply.Event.FinishedAt = now
	}
	e := t.c.rowEvent(row, t.owner, now)
	e.SubmitIndex, e.CompleteIndex = row.inTerm.submitIndex, index
	row.inTerm.bodyHash = sha256.Sum256(row.reply.Body)
	e.ResultHash, e.Salt = hex.EncodeToString(row.inTerm.bodyHash[:]), rand.Text()
	row.unstored.Add(1)
	row.inTerm.done = true
	row.inTerm.event = eventName(t.c.cfg.Recorder.RecordRow(&e, row.eventStored))
	if row.form.large {
		t.bodies.stowResult(row)
	}
	t.window.lead(t.c.order.key(row))
	t.journal.unkept.wait(row, now)
	t.c.at("answered")
}

// emit hands the contiguous head to the emitter, if it is free. Rows that gather while
// one group is in flight form the next.
func (t *term) emit() {
	if t.out.busy {
		return
	}
	group := t.window.ready()
	if len(group) == 0 {
		return
	}
	t.own.mark(group, t.window.buf.Marks(len(group)))
	t.journal.purges.appending()
	t.out.send(group)
}

// emitted releases rows whose results are stored, and acks them. An ack before the result
// is stored would lose the row in a crash.
func (t *term) emitted(e emitted) error {
	t.out.busy = false
	if e.err != nil {
		return e.err
	}
	t.own.settled(e)
	if len(e.rows) == 0 {
		return nil
	}
	t.own.appended(e)
	t.in.moved(e.at)
	t.window.buf.Release(len(e.rows))
	failed := 0
	for _, row := range e.rows {
		delete(t.window.open, row.Seq)
		if !row.journal.stored { // else the lane knows it since the journal had its reply
			t.lane.kept(row.Seq)
		}
		if row.reply.Failed {
			failed++
		}
		t.acks.emitted(row.inTerm.ackReply, e.at)
		if row.trace != nil {
			row.trace.Emitted(row.reply, e.at)
		}
		if o := t.c.cfg.Observer; o != nil {
			waited := e.at.Sub(row.reply.Event.FinishedAt)
			o.RowEmitted(t.c.cfg.Partition, row.reply.Failed, e.at.Sub(row.Taken), waited)
		}
	}
	t.journal.emitted(e)
	t.bodies.removeUnnamed(e.rows)
	t.c.at("acked")
	t.c.setStatus(func(s *Status) {
		s.Emitted += uint64(len(e.rows))
		s.Failed += uint64(failed)
	})
	return nil
}
