package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
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
	t.c.cfg.Spread.Release(t.c.cfg.Partition)
	for _, row := range t.open {
		if !row.answered {
			row.wanted.Store(false)
		}
	}
	t.recall()
}

// recall asks for the rows that a released partition, or one that is paused, does not want called. It is repeated: a row
// may have been on its way into the executor's queue, or come back to it for another attempt.
func (t *term) recall() {
	if r, ok := t.c.cfg.Executor.(Recaller); ok && (t.released || t.paused) {
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
		if !row.term.done || t.c.cfg.Journal && !t.journal.unkept.has(row) {
			delete(t.open, seq)
		}
	}
}

// drained reports whether a stopping term has nothing left to wait for: every row of the
// window is answered or taken back, and no answered one is first in line to be emitted.
// Those that are complete behind a row taken back stay where they are, since nothing fills
// its place in this term.
func (t *term) drained() bool {
	if t.out.busy || t.buf.Completed()+len(t.takenBack) < t.buf.Len() {
		return false
	}
	_, ready := t.buf.Ready(0)
	return !ready
}

// handOver leaves the consumer at the row after the last one emitted, and the pin to the replica that asks first.
// Without the reset, rows taken and not emitted would come again only after AckWait.
//
// It reads the log before the reset, for the partition may have been lost while it drained:
//
//	A waits for its last call. B finds nobody pinned, claims, resets the consumer, and takes rows.
//	A's call ends. A has nothing to append, so it does not learn of B, and resets the consumer under B.
func (t *term) handOver(ctx context.Context) error {
	t.in.pull.close() // a row that came to a request in flight would be taken from the next owner
	t.c.at("drained")
	if err := t.c.stillEndsAt(ctx, t.own.end); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	if err := t.leaveMark(ctx); err != nil {
		return fmt.Errorf("hand over: %w", err)
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

// holdAfter is how a process holds a partition after a term, or an attempt at one, that ended with err. One that lost
// the connection is the first to continue when it is back: the replies that it waits for arrive in its memory.
func (c *Consumer) holdAfter(err error) spread.Hold {
	if err != nil && !errors.Is(err, ErrFenced) && !c.nc.IsConnected() {
		return spread.HeldLost
	}
	return spread.NotHeld
}

// asideLook is the time between two looks of a replica that stands aside at the partition
// that it has left to the others. asideLooks is how many looks in a row must find that
// nobody serves it. Further looks are 1.1 × PinnedTTL apart: a live owner without room for
// a row renews its pull request every 0.4 × PinnedTTL, and the request waits for half of
// that, so at least one look sees it.
const (
	asideLook  = 5 * time.Second
	asideLooks = 4
)

// steering is what others ask of a consumer that runs.
type steering struct {
	changed chan struct{} // holds a token when one of the rest has changed
	paused  atomic.Bool
	aside   atomic.Bool
}

func (s *steering) set(what *atomic.Bool, on bool) {
	if what.Swap(on) == on {
		return
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Pause has the rows of the partition wait, those taken already too, until it is called
// with false, and returns at once. Calls in flight end, and their results are stored; no
// other row begins. It applies to every term of this consumer. Safe for concurrent use.
func (c *Consumer) Pause(on bool) { c.steer.set(&c.steer.paused, on) }

// StandAside has this replica hand the partition over to one that stands by for it, and ask for it no more, until it is
// called with false; it returns at once. A replica that finds again and again that rows wait and nobody serves them or
// asks for them stands aside no longer. With a [Config.Spread] it does nothing: see [spread.Spread.Leave]. Safe for
// concurrent use.
func (c *Consumer) StandAside(on bool) {
	if c.cfg.Spread == nil {
		c.steer.set(&c.steer.aside, on)
	}
}

// StandsAside reports whether it does. Safe for concurrent use.
func (c *Consumer) StandsAside() bool { return c.steer.aside.Load() }

// mayServe reports whether this replica should serve the partition.
func (c *Consumer) mayServe() bool {
	return c.cfg.Spread.Should(c.cfg.Partition) && !c.StandsAside()
}

// lookAside ends the standing aside where rows wait and nobody serves them; unserved counts the looks in a row that have
// found that, this one included. Nobody is pinned is not enough:
//
//	A stands aside. B serves the partition, has its window full of rows that wait for the end of a pause, and a new leader of the durable
//	consumer forgets the pin. The server grants it again only with a row, and none is left; but B asks.
func (c *Consumer) lookAside(soft context.Context, durable *streams.Durable, unserved *int) error {
	info, err := c.look(soft, durable)
	if err != nil {
		return err
	}
	if pinned(info) != "" || info.NumWaiting > 0 || info.NumPending+uint64(info.NumAckPending) == 0 { //nolint:gosec // not negative
		*unserved = 0
		return nil
	}
	if *unserved++; *unserved == asideLooks {
		c.log.Warn("rows are pending and no replica serves the partition, taking it back", slog.Uint64("pending", info.NumPending))
		c.steer.aside.Store(false)
	}
	return nil
}

// steered acts on what has changed: the partition goes to another replica, or its rows wait, or wait no longer.
//
// A row is handed back only while it is not wanted, so that it comes back here and waits. One that is in flight when the
// pause ends, or on its way back, is wanted again: it is answered, or it is started with the others.
func (t *term) steered() {
	if !t.c.mayServe() {
		t.release()
	}
	t.pause()
}

// pause has the rows wait, or wait no longer, as the reasons are now.
func (t *term) pause() {
	paused := t.mustWait()
	if paused == t.paused || t.stopping {
		return
	}
	t.paused = paused
	for _, row := range t.open {
		if !row.answered {
			row.wanted.Store(!paused)
		}
	}
	t.recall()
}
