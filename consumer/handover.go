package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/llm-stage/stage/consumer/spread"
)

// errReleased ends a term whose partition goes to another replica.
var errReleased = errors.New("the partition goes to another replica")

// Recaller is what an [Executor] may also be: Recall asks it to hand back soon the rows that are no longer wanted and
// have no call in flight (see [Row.Wanted]). Without it they are handed back when their turn comes, which may take
// long while the provider has little capacity. Recall must not block.
type Recaller interface {
	Recall()
}

// release hands the partition over to another replica: a stop of this partition alone.
func (t *term) release() {
	if t.stopping {
		return
	}
	t.c.log.Info("releasing the partition to another replica", slog.String("owner", t.owner))
	t.stopping, t.released = true, true
	for _, row := range t.open {
		if !row.answered {
			row.wanted.Store(false)
		}
	}
	t.recall()
}

// recall asks for the rows that a released partition, or one that is held, does not want called. It is repeated: a row
// may have been on its way into the executor's queue, or come back to it for another attempt.
func (t *term) recall() {
	if r, ok := t.c.cfg.Executor.(Recaller); ok && (t.released || t.held) {
		r.Recall()
	}
}

// dropHandedBack forgets the rows that nobody works on, and those whose replies the next owner finds in the journal.
func (t *term) dropHandedBack() {
	for _, row := range t.takenBack {
		row.abandon()
	}
	t.takenBack = nil
	for seq, row := range t.open {
		if !row.done || t.c.cfg.Journal && !row.keep {
			delete(t.open, seq)
		}
	}
}

// drained reports whether a stopping term has nothing left to wait for.
func (t *term) drained() bool {
	if t.emitting || t.buf.Completed()+len(t.takenBack) < t.buf.Len() {
		return false
	}
	head, ok := t.buf.Ready(0)
	return !ok || !head.Value.row.done // what is complete behind a row handed back stays
}

// handOver leaves the consumer at the row after the last one emitted, and the pin to the replica that asks first.
// Without the reset, rows taken and not emitted would come again only after AckWait.
//
// It reads the log before the reset, for the partition may have been lost while it drained:
//
//	A waits for its last call. B finds nobody pinned, claims, resets the consumer, and takes rows.
//	A's call ends. A has nothing to append, so it does not learn of B, and resets the consumer under B.
func (t *term) handOver(ctx context.Context) error {
	t.pull.close() // a row that came to a request in flight would be taken from the next owner
	t.c.at("drained")
	if err := t.c.stillEndsAt(ctx, t.end); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	if err := t.leaveMark(ctx); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	t.accepted = t.end.low
	if err := t.durable.Reset(ctx, t.accepted+1); err != nil {
		return err
	}
	t.c.at("handing over")
	if err := t.durable.Unpin(ctx); err != nil {
		t.c.log.Debug("pin not released, it will expire", slog.Any("error", err))
	}
	return nil
}

// holdAfter is how a process holds a partition after a term, or an attempt at one, that ended with err. One that lost
// the connection is the first to continue when it is back: the replies that it waits for arrive in its memory.
func (c *Consumer) holdAfter(err error) spread.Hold {
	if err != nil && !errors.Is(err, ErrFenced) && !c.nc.IsConnected() {
		return spread.HeldLost
	}
	return spread.NotHeld
}
