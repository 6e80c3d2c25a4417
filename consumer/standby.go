package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// promptLook leaves a request time to be served before the consumer is looked at: a stage that starts again after it
	// was killed finds its rows taken and nobody pinned, and need not wait for the pin to run out.
	promptLook = 10 * time.Millisecond
	// orphanWaitMax spreads the second look of those who stand by.
	orphanWaitMax = 150 * time.Millisecond
)

var errConnectionLost = errors.New("the connection to NATS was lost")

// standBy waits until this process may claim the partition, and returns the pin; empty when it goes on without one. It
// returns with soft, too.
//
// The server grants the pin only together with a row. None can be delivered while every row is taken and unacked, so an
// owner that died so would never be replaced; then the one who looks second finds nobody pinned, twice, and goes on
// without a pin: the first row after the reset brings it. The random wait keeps ten standbys from claiming at once.
func (c *Consumer) standBy(soft context.Context, durable jetstream.Consumer, lost <-chan nats.Status) (pin string, err error) {
	ttl := c.cfg.PinnedTTL
	p, err := newPuller(c.nc, c.apiPrefix, c.cfg.InputStream, c.durable, "", ttl/2)
	if err != nil {
		return "", err
	}
	defer p.close()
	orphaned := false
	look := promptLook // when to look whether anybody is pinned, if nothing comes before
	for {
		now := time.Now()
		next, err := p.step(now, 1, 1<<30, true)
		if err != nil {
			return "", err
		}
		select {
		case <-soft.Done():
			return "", nil
		case <-lost:
			return "", errConnectionLost
		case <-c.mail.signal:
			c.collect()
			continue
		case m := <-p.msgs:
			row, err := p.received(m, time.Now())
			if err != nil {
				return "", err
			}
			if row {
				return p.pin, nil
			}
		case <-time.After(min(look, next.Sub(now))):
		}
		look = ttl
		info, err := durable.Info(soft)
		if soft.Err() != nil {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("look at consumer %s: %w", c.durable, c.denied(err))
		}
		c.setStatus(func(s *Status) { s.Pending = info.NumPending })
		if !nobodyPinned(info) || info.NumPending == 0 && info.NumAckPending == 0 {
			c.problems.clear(problemOwnership) // what held up an earlier term is no concern of a standby
		}
		if !nobodyPinned(info) || info.NumAckPending == 0 {
			orphaned = false
			continue
		}
		if orphaned {
			return "", nil
		}
		orphaned, look = true, time.Duration(rand.Int64N(int64(orphanWaitMax)))
	}
}

func nobodyPinned(info *jetstream.ConsumerInfo) bool {
	for _, g := range info.PriorityGroups {
		if g.Group == pinGroup && g.PinnedClientID != "" {
			return false
		}
	}
	return true
}

// collect takes the replies that arrive while no term is on.
func (c *Consumer) collect() {
	for _, row := range c.mail.take(nil) {
		c.answeredLate(row)
	}
}
