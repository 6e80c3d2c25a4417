package consumer

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

// asideLook is the time between two looks of a replica that stands aside at what it has left to the others.
const asideLook = 5 * time.Second

// steering is what others ask of a consumer that runs.
type steering struct {
	changed chan struct{} // holds a token when one of the rest has changed
	held    atomic.Bool
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

// Hold has the rows of the partition wait, those taken already too, until it is called with false, and returns at once.
// Calls in flight end, and their results are stored; no other row begins. It holds in every term of this consumer. Safe
// for concurrent use.
func (c *Consumer) Hold(on bool) { c.steer.set(&c.steer.held, on) }

// StandAside has this replica hand the partition over to one that stands by for it, and ask for it no more, until it is
// called with false; it returns at once. A replica that finds twice that rows wait and nobody serves them stands aside
// no longer. With a [Config.Spread] it does nothing: see [spread.Spread.Leave]. Safe for concurrent use.
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

// lookAside ends the standing aside where rows wait that nobody serves: neglected says that the last look found that, too.
func (c *Consumer) lookAside(soft context.Context, durable *streams.Durable, neglected *bool) error {
	info, err := c.look(soft, durable)
	if err != nil {
		return err
	}
	before := *neglected
	*neglected = pinned(info) == "" && info.NumPending+uint64(info.NumAckPending) > 0 //nolint:gosec // not negative
	if before && *neglected {
		c.log.Warn("rows are pending and no replica serves the partition, taking it back", slog.Uint64("pending", info.NumPending))
		c.steer.aside.Store(false)
	}
	return nil
}

// steered acts on what has changed: the partition goes to another replica, or its rows wait, or wait no longer.
//
// A row is handed back only while it is not wanted, so that it comes back here and waits. One that is in flight when the
// hold ends, or on its way back, is wanted again: it is answered, or it is started with the others.
func (t *term) steered() {
	if !t.c.mayServe() {
		t.release()
	}
	held := t.c.steer.held.Load()
	if held == t.held || t.stopping {
		return
	}
	t.held = held
	for _, row := range t.open {
		if !row.answered {
			row.wanted.Store(!held)
		}
	}
	t.recall()
}
