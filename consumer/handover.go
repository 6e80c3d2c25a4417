package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

// errReleased ends a term whose partition goes to another replica.
var errReleased = errors.New("the partition goes to another replica")

// Recaller is an [Executor] that can hand rows back early. Recall asks it to hand back
// soon the rows that are no longer wanted and have no call in flight (see [Row.Wanted]).
// Other executors hand them back when their turn comes, which may take long while the
// provider has little capacity. Recall must not block.
type Recaller interface {
	Recall()
}

// release begins to hand the partition over to another replica: it stops this partition,
// and no other of the process.
func (t *term) release() {
	if t.stopping {
		return
	}
	t.c.log.Info("releasing the partition to another replica", slog.String("owner", t.owner))
	t.stopping, t.released = true, true
	t.c.cfg.Spread.Release(t.c.cfg.Partition)
	for _, row := range t.window.open {
		if !row.answered {
			row.wanted.Store(false)
		}
	}
	t.recall()
}

// recall asks the executor for the rows that must not be called, because the partition is
// released or paused. It is repeated: a row may have entered the executor's queue just
// then, or come back to it for another attempt.
func (t *term) recall() {
	if r, ok := t.c.cfg.Executor.(Recaller); ok && (t.released || t.paused) {
		r.Recall()
	}
}

// dropHandedBack forgets the rows that nobody works on, and the rows whose replies the
// next owner finds in the journal. A row with a reply that is in memory alone is carried
// over: if the partition comes back before the next owner has stored its result, it need
// not be paid for again.
func (t *term) dropHandedBack() {
	t.window.takenBack = slices.DeleteFunc(t.window.takenBack, func(row *Row) bool {
		if onlyInMemory(row) { // replies to elements
			return false
		}
		row.abandon()
		return true
	})
	for seq, row := range t.window.open { // all answered, since the term has drained
		if t.c.cfg.Journal && !onlyInMemory(row) {
			delete(t.window.open, seq)
			row.abandon()
		}
	}
}

// drained reports whether a stopping term has nothing left to wait for: every row of the
// window is answered or taken back, and no answered one is first in line to be emitted.
// For example, row 3 is taken back and row 4 is answered: row 4 stays where it is, since
// nothing fills the place of row 3 in this term.
func (t *term) drained() bool {
	if t.out.busy || t.window.buf.Completed()+len(t.window.takenBack) < t.window.buf.Len() {
		return false
	}
	_, ready := t.window.buf.Ready(0)
	return !ready
}

// handOver leaves the consumer at the row after the last one emitted, and the pin to the
// replica that asks first. Without the reset, rows taken and not emitted would come again
// only after AckWait.
//
// It reads the log before the reset, for the partition may have been lost while it
// drained:
//
//	A has taken row 3 back, and waits for its call for row 4. B finds nobody pinned,
//	claims, resets the consumer, and takes rows.
//	A's call ends. Row 4 can't go before row 3, so A has nothing to append, does not learn
//	of B, and resets the consumer under B.
func (t *term) handOver(ctx context.Context) error {
	t.in.pull.close() // a row that came to a request in flight would be taken from the next owner
	t.c.at("drained")
	if err := t.c.results.stillEndsAt(ctx, t.own.end); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	if t.own.end.ahead > 0 {
		if err := t.window.passKnown(ctx, t.c, t.in.accepted); err != nil {
			return fmt.Errorf("hand over: %w", err)
		}
		if err := t.own.leave(ctx, t.window.buf.Mark()); err != nil {
			return fmt.Errorf("hand over: %w", err)
		}
	}
	t.in.accepted = t.own.end.low
	if err := t.in.durable.Reset(ctx, t.in.accepted+1); err != nil {
		return err
	}
	t.c.at("handing over")
	if err := t.in.durable.Unpin(ctx); err != nil {
		t.c.log.Debug("pin not released, it will expire", slog.Any("error", err))
	}
	return nil
}

// steered acts on a change of [steering]: the partition goes to another replica, or a
// pause begins or ends.
//
// The executor hands a row back only while the row is not wanted, and it waits here then.
// A row that is in flight when the pause ends is wanted again, and is answered. A row
// that is just being handed back is started again with the others.
func (t *term) steered() {
	if !t.c.steer.mayServe() {
		t.release()
	}
	t.pause()
}

// pause has the rows wait while an operator has asked for it or nothing can be stored, and
// lets them continue after that.
func (t *term) pause() {
	paused := t.c.steer.paused.Load() || !t.c.storable.room() || t.c.cfg.Recorder.Refused()
	if paused == t.paused || t.stopping {
		return
	}
	t.paused = paused
	for _, row := range t.window.open {
		if !row.answered {
			row.wanted.Store(!paused)
		}
	}
	t.recall()
}
