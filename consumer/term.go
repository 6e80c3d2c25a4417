package consumer

import (
	"cmp"
	"context"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// term is one term of ownership: the time from a claim of the partition to its end. Its
// parts are types of their own, each with its state and invariant. The term makes a row
// go from one part to the next, see rows.go.
//
//	in       rows that come         window   rows taken and not emitted
//	returns  rows that were away    lane     rows that are in a batch
//	journal  replies that wait      bodies   rows and replies that are objects
//	out      groups to append       own      the end of the log
//	acks     rows to ack            gauges   the status
//	drops    results that are old
//
// The goroutine of [Consumer.Run] owns the term with all parts. Beside it run the emitter,
// behind the outlet, up to [bodiesAtOnce] transfers, and the dropper.
type term struct {
	c     *Consumer
	owner string

	in      intake    // of rows, from the durable consumer
	own     ownership // of the partition, by the log
	window  *window
	returns *returns  // of rows that were away; nil where no row is ever away
	lane    *laneRows // nil where there is no lane
	journal *journal
	bodies  bodies
	out     outlet
	acks    acks
	gauges  gauges
	drops   dropper

	// unstarted are open rows that nobody works on. They wait until the journal is read,
	// with their kept replies, their bodies, or the log after a gap; until an operator's
	// pause has ended; or until results and events can be stored again.
	// [inquiry.unstarted] tells these apart.
	unstarted []*Row
	// collected counts the rows that have left the mailbox in this pass of the loop, until
	// its end, see [mailbox.count].
	collected int
	spare     []*Row    // the mailbox's next list
	refitAt   time.Time // when the durable consumer was last known to be as it must be

	stopping bool // it takes no more rows, and drains; never false again
	released bool // to another replica; implies stopping, and is never false again
	paused   bool // no row is started, see [Consumer.Pause] and [storable]
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

// close ends the parts that work beside the term, and waits for them. A group in flight is
// left to the log: the next term reads whether it was stored.
func (t *term) close() {
	t.drops.close()
	t.out.close()
	t.bodies.close()
	t.in.close()
	t.returns.close()
	t.lane.close()
	t.journal.link.close()
}

// reset sets the durable consumer to the row after the last one taken, see [intake.reset].
func (t *term) reset(ctx context.Context) error {
	t.acks.flush()
	return t.in.reset(ctx)
}

// run takes, completes and emits rows until the term ends. Each pass of its loop does what
// is due, and then waits for one thing to happen.
func (t *term) run(soft, hard context.Context, lost <-chan nats.Status) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := soft.Done()
	moved := t.c.cfg.Spread.Changes(t.c.cfg.Partition)
	t.steered() // since we stood by
	for {
		t.c.at("pass")
		now := time.Now()
		t.own.beat(now)
		t.pause()
		t.acks.step(now)
		if t.stopping && t.drained() && t.journal.unkept.flushed(now) && t.bodies.tidied(now) {
			return t.finish(soft, hard)
		}
		next, err := t.step(hard, now)
		if err != nil {
			return err
		}
		timer.Reset(min(next.Sub(now), t.c.pulse.limit/2))
		select {
		case <-hard.Done():
			return context.Cause(hard)
		case <-lost:
			return errConnectionLost
		case <-stop:
			stop, t.stopping = nil, true
		case <-moved:
			t.steered()
		case <-t.c.steer.changed:
			t.steered()
		case m := <-t.in.pull.msgs:
			err = t.received(hard, m)
		case m := <-t.returns.replies():
			if !t.stopping { // else the next owner reads the row
				err = t.returns.received(m, time.Now())
			}
		case <-t.lane.signal(): // the next step looks
		case m := <-t.journal.link.answers:
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
		case q := <-t.c.questions:
			q.answer <- (&inquiry{t: t, seq: q.seq, row: t.window.open[q.seq]}).answer()
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

// step does what is due at the beginning of a pass, from the request for rows to the
// start of those that have come, and returns when the next pass is due if nothing happens
// before.
func (t *term) step(ctx context.Context, now time.Time) (next time.Time, err error) {
	if err := cmp.Or(t.c.cfg.Streams.Verdict(), t.lookAtDurable(ctx, now)); err != nil {
		return next, err // nothing may be stored meanwhile: each result could push out another
	}
	if t.in.resets() && !now.Before(t.in.resetAt) {
		t.acks.flush() // of the rows that were emitted since, see [Consumer.begin]
		if err := t.in.setBack(ctx); err != nil {
			return next, err
		}
	}
	if next, err = t.request(now); err != nil {
		return next, err
	}
	if err := t.returns.bringBack(now, t.stopping); err != nil {
		return next, err
	}
	if t.stopping {
		t.lane.stop()
	}
	t.lane.unstashDue(t.stopping)
	next = soonest(soonest(next, t.journal.step(now)), t.acks.by)
	next = soonest(next, t.bodies.step(now))
	if t.paused {
		next = soonest(next, now.Add(fullLook))
	}
	t.start()
	return next, nil
}

// finish hands the partition over, after the term has drained.
func (t *term) finish(soft, hard context.Context) error {
	t.acks.flush() // the reset makes up for it, if it succeeds
	t.journal.purges.clear()
	if err := t.handOver(hard); err != nil {
		return err
	}
	if t.released && soft.Err() == nil {
		return errReleased
	}
	return nil
}

// watch looks at the consumer after a silence. When rows wait and none came, the consumer
// is reset to the row after the last one taken.
func (t *term) watch(ctx context.Context) error {
	mayAsk := !t.stopping && !t.in.resets() && t.bodies.forKey == 0
	full := t.window.room() <= 0 || t.window.buf.Len() > 0 && t.in.pull.full
	if !mayAsk || full || time.Now().Before(t.in.lookDue()) {
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
	if t.c.cfg.Streams == nil || t.stopping || now.Sub(t.refitAt) < streams.InspectEvery {
		return nil
	}
	t.refitAt = now
	return t.in.durable.Refit(ctx)
}

// countReplies reports to the mailbox how many replies a crash would lose.
func (t *term) countReplies() {
	t.c.resumeIf(t.c.mail.count(t.collected, t.journal.unkept.lossy()))
	t.collected = 0
}

// soonest returns the earlier of two instants; a zero one is never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
