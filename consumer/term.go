package consumer

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// term is one term of ownership. The goroutine of [Consumer.Run] owns it; only the
// emitter runs beside it. What happens to a row, from the request to the ack, is in
// rows.go.
type term struct {
	c       *Consumer
	owner   string
	journal *journal
	acks    acks
	gauges  gauges

	window *window
	// unstarted are rows of open that nobody works on. They wait until the journal is read,
	// or the log after a gap, until an operator's pause has ended, or until results and
	// events can be stored again. unstartedHold tells these apart.
	unstarted []*Row
	// collected rows have left the mailbox and are not counted yet, see mailbox; 0 at the
	// end of each turn.
	collected int
	spare     []*Row // the mailbox's next list

	returns *returns  // reads rows that were away; nil where no row is ever away
	lane    *laneRows // nil where there is no lane

	in  intake    // of rows, from the durable consumer
	own ownership // of the partition, by the log
	out outlet    // of groups of answered rows, to the emitter
	// bodies that are larger than a message, on their way to the object store and back
	bodies bodies
	fit    time.Time // when the durable consumer was last known to be as it must be

	// A stopping term takes no more rows and drains. Once set, stopping and released stay
	// set.
	stopping bool
	released bool // to another replica; implies stopping
	paused   bool // no row is started, see [Consumer.Pause] and [storable]
}

// begin claims the partition and sets the durable consumer to the row after the last one
// emitted.
//
// The order matters. The claim goes first: an owner that is still alive would lose rows
// that it holds if a reset came before it is fenced. And the reset never goes to a row
// that may have been acked: an ack from before the reset, arriving late, would lift the
// ack floor to its old, higher delivery number, and the server would ignore every later
// ack.
func (c *Consumer) begin(ctx, soft context.Context, lost <-chan nats.Status, durable *streams.Durable, pin string) (*term, error) {
	found, err := c.survey(ctx, durable)
	if err != nil {
		return nil, err
	}
	end := found.end
	if c.results.lost { // no claim for each attempt until they are back
		if _, err := c.results.finishedAhead(ctx, end, new(aheadLog)); err != nil {
			return nil, err
		}
		c.results.lost = false
	}
	kept := &keptStream{connection: c.connection, cfg: &c.cfg, created: found.input.Created}
	if end.newInput {
		kept.purgeOldInput(ctx, c.log)
	}
	old := kept.oldReplies(ctx)
	if err := old.mayMove(ctx); err != nil {
		return nil, err
	}
	owner := c.newOwner()
	c.at("claiming")
	claiming := time.Now()
	if end, err = c.results.claim(ctx, owner, end, found.input.Created); err != nil {
		return nil, err
	}
	c.at("claimed")
	c.log.Info("claimed the partition", slog.String("owner", owner), slog.Uint64("high_water_mark", end.low))
	c.recordRun("claim", owner, "")
	c.carried.forget(end.low, found.input.Created)
	t := c.newTerm(owner, durable, pin, end, kept)
	c.pulse.begin(claiming)
	err = t.reset(ctx)
	if err == nil {
		c.at("set back")
		err = t.lineUp(ctx, soft, lost)
	}
	if err == nil && old.count > 0 {
		err = t.in.whilePinned(ctx, soft, lost, func(ctx context.Context) error {
			old.move(ctx, t.window.finished, c.log)
			return nil
		})
	}
	if err == nil && t.lane != nil {
		err = t.in.whilePinned(ctx, soft, lost, func(ctx context.Context) error { return t.lane.open(ctx, owner, end.low) })
	}
	if err != nil {
		t.in.close()
		t.returns.close()
		t.lane.close()
		if soft.Err() != nil && c.results.stillEndsAt(ctx, end) == nil { // the next owner need not wait until the pin has run out
			_ = durable.Unpin(ctx)
		}
		return nil, err
	}
	t.journal.open(time.Now())
	for _, row := range c.carried.rows {
		t.journal.waitOf(row, time.Now())
	}
	t.out.open(ctx, newEmitter(c, owner, end, found.results.Config))
	t.bodies.open(ctx)
	c.results.served = true
	claimed := t.own.end.seq
	c.setStatus(func(s *Status) {
		s.Role, s.Taking, s.Owner, s.Claim, s.HighWaterMark, s.JournalProblem = Owner, false, owner, claimed, end.low, ""
	})
	return t, nil
}

// newTerm returns a term that has claimed the partition at end and has taken no row.
func (c *Consumer) newTerm(owner string, durable *streams.Durable, pin string, end logEnd, kept *keptStream) *term {
	now := time.Now()
	t := &term{
		c: c, owner: owner, fit: now,
		window: &window{
			cfg: &c.cfg, order: c.order, shared: c.shared, open: make(map[uint64]*Row), acksDelete: durable.AcksDelete,
		},
		acks: acks{nc: c.nc, log: c.log, all: c.order.ackAll(durable.Handle.CachedInfo().Config.AckPolicy)},
		in:   intake{c: c, durable: durable, pin: pin, accepted: end.low},
		own:  ownership{c: c, end: end, checked: now},
	}
	t.journal = &journal{c: c, stream: kept, owner: owner, rows: t.window, bodies: &t.bodies}
	t.bodies = bodies{transfers: transfers{c: c}, window: t.window, journal: t.journal}
	t.lane = t.laneRows()
	t.journal.lane = t.lane
	return t
}

// carryOver leaves the rows of the term, which has ended, to the next one.
func (t *term) carryOver() {
	for _, row := range t.unstarted {
		delete(t.window.open, row.Seq)
		t.c.carried.keepIdle(row)
	}
	for _, row := range t.window.takenBack {
		t.c.carried.keepIdle(row)
	}
	for _, row := range t.window.open {
		t.c.carried.keep(row)
	}
	t.c.resumeIf(t.c.mail.count(t.collected, 0))
	t.c.resumeIf(t.c.gate.open())
}

// close waits for the emitter. A group in flight is left to the log: the next term reads
// whether it was stored.
func (t *term) close() {
	t.out.close()
	t.bodies.close()
	t.in.close()
	t.returns.close()
	t.lane.close()
	t.journal.close()
}

// reset sets the durable consumer to the row after the last one taken, see [intake.reset].
func (t *term) reset(ctx context.Context) error {
	t.acks.flush()
	return t.in.reset(ctx)
}

// resetIfDue makes up for a reset that had to wait. The acks of rows emitted meanwhile go
// first, see [Consumer.begin].
func (t *term) resetIfDue(ctx context.Context, now time.Time) error {
	if !t.in.resets() || now.Before(t.in.resetAt) {
		return nil
	}
	t.acks.flush()
	return t.in.setBack(ctx)
}

// run takes, completes and emits rows until the term ends.
func (t *term) run(soft, hard context.Context, lost <-chan nats.Status) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := soft.Done()
	turn := t.c.cfg.Spread.Changes(t.c.cfg.Partition)
	t.steered() // since we stood by
	for {
		t.c.at("turn")
		now := time.Now()
		t.own.beat(now)
		t.pause()
		t.acks.step(now)
		if t.stopping && t.drained() && t.journal.flushed(now) && t.bodies.tidied(now) {
			return t.finish(soft, hard)
		}
		if err := cmp.Or(t.c.cfg.Streams.Verdict(), t.lookAtDurable(hard, now)); err != nil {
			return err // nothing may be stored meanwhile: each result could push out another
		}
		if err := t.resetIfDue(hard, now); err != nil {
			return err
		}
		next, err := t.request(now)
		if err != nil {
			return err
		}
		if err := t.returns.bringBack(now, t.stopping); err != nil {
			return err
		}
		if t.stopping {
			t.lane.stop()
		}
		t.lane.unstashDue(t.stopping)
		next = earlier(earlier(next, t.journal.step(now)), t.acks.by)
		next = earlier(next, t.bodies.step(now))
		if t.paused {
			next = earlier(next, now.Add(fullLook))
		}
		t.start()
		timer.Reset(min(next.Sub(now), t.c.pulse.limit/2))
		select {
		case <-hard.Done():
			return context.Cause(hard)
		case <-lost:
			return errConnectionLost
		case <-stop:
			stop, t.stopping = nil, true
		case <-turn:
			t.steered()
		case <-t.c.steer.changed:
			t.steered()
		case m := <-t.in.pull.msgs:
			err = t.received(hard, m)
		case m := <-t.returns.replies():
			if !t.stopping { // else the next owner reads the row
				err = t.returns.received(m, time.Now())
			}
		case q := <-t.c.questions:
			q.answer <- (&inquiry{t: t, seq: q.seq, row: t.window.open[q.seq]}).answer()
		case <-t.lane.signal():
		case m := <-t.journal.answers:
			t.journal.received(m, time.Now())
		case b := <-t.bodies.done:
			if t.bodies.ended(b, time.Now()); t.bodies.keyRead() {
				err = t.reset(hard)
			}
		case <-t.c.mail.signal:
			t.collect()
			t.emit()
		case e := <-t.out.stored:
			if err = t.emitted(e); err == nil {
				t.emit()
			}
		case <-timer.C:
			t.recall()
			err = t.watch(hard)
		}
		if err != nil {
			return err
		}
		t.checkOwner(now)
		t.window.setGate()
		t.countReplies()
		t.gauges.publish(t)
	}
}

// finish hands the partition over, after the term has drained.
func (t *term) finish(soft, hard context.Context) error {
	t.acks.flush() // the reset makes up for it, if it succeeds
	t.journal.clear()
	if err := t.handOver(hard); err != nil {
		return err
	}
	if t.released && soft.Err() == nil {
		return errReleased
	}
	return nil
}

// watch looks at the consumer after a silence: when rows wait and none came, it is reset
// to the row after the last.
func (t *term) watch(ctx context.Context) error {
	if t.stopping || t.in.resets() || t.bodies.forKey != 0 || t.window.room() <= 0 || t.window.buf.Len() > 0 && t.in.pull.full || time.Now().Before(t.in.lookDue()) {
		return nil
	}
	info, err := t.in.look(ctx)
	if err != nil || t.window.roomBytes() <= 0 {
		return err
	}
	owes, err := t.in.owes(ctx, info, t.window.unacked())
	if err != nil {
		return err
	}
	if !owes {
		t.in.owesNothing()
		return nil
	}
	if err := t.stillOurs(ctx); err != nil {
		return err
	}
	t.in.owed(info)
	return t.reset(ctx)
}

// stillOurs reads the log, see [ownership.stillOurs].
func (t *term) stillOurs(ctx context.Context) error { return t.own.stillOurs(ctx, t.out.busy) }

// checkOwner has the log looked at where that is due. The emitter looks, so that rows are
// taken and the pin is renewed meanwhile, however long the answer takes.
func (t *term) checkOwner(now time.Time) {
	if t.out.busy || !t.own.lookDue(now, t.in.quiet, t.in.pull.pin != "") {
		return
	}
	t.own.checked = now
	t.out.send(nil)
}

// lookAtDurable looks at the settings of the durable consumer once a minute, as anybody
// may change them.
func (t *term) lookAtDurable(ctx context.Context, now time.Time) error {
	if t.c.cfg.Streams == nil || t.stopping || now.Sub(t.fit) < streams.InspectEvery {
		return nil
	}
	t.fit = now
	return t.in.durable.Refit(ctx)
}

// countReplies reports to the mailbox how many replies a crash would lose.
func (t *term) countReplies() {
	t.c.resumeIf(t.c.mail.count(t.collected, t.journal.lossy()))
	t.collected = 0
}
