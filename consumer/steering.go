package consumer

import (
	"sync/atomic"

	"github.com/llm-stage/stage/consumer/spread"
)

// steering is what others ask of a consumer that runs: an operator, and the spread of the
// partitions over replicas. Anybody may set it; the goroutine of [Consumer.Run] acts on
// it, see [term.steered].
type steering struct {
	changed   chan struct{} // holds a token when one of paused and aside has changed
	paused    atomic.Bool
	aside     atomic.Bool
	shares    *spread.Spread // [Config.Spread]
	partition int
}

// mayServe reports whether this replica should serve the partition.
func (s *steering) mayServe() bool { return s.shares.Should(s.partition) && !s.aside.Load() }

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

// StandAside has this replica hand the partition over to one that stands by for it, and
// ask for it no more, until it is called with false; it returns at once. A replica that
// finds again and again that rows wait and nobody serves them or asks for them stands
// aside no longer. With a [Config.Spread] it does nothing: see [spread.Spread.Leave].
// Safe for concurrent use.
func (c *Consumer) StandAside(on bool) {
	if c.cfg.Spread == nil {
		c.steer.set(&c.steer.aside, on)
	}
}

// StandsAside reports whether it does. Safe for concurrent use.
func (c *Consumer) StandsAside() bool { return c.steer.aside.Load() }
