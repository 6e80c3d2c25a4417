package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// promptLook leaves a request time to be served before the consumer is looked at: a
	// stage that starts again after it was killed finds its rows taken and nobody pinned,
	// and need not wait for the pin to run out.
	promptLook = 10 * time.Millisecond
	// orphanWaitMax spreads the second look of those who stand by.
	orphanWaitMax = 150 * time.Millisecond
	// idleLookAlone and idleLookMost bound the time between two looks of those who stand
	// by where no row waits. Without a spread nobody says that a replica is gone, which
	// may have been given a row just before. It grows only after idleAfter: servers that
	// have just elected a leader may say for a moment that no row waits and none is
	// taken.
	idleLookAlone = 4 * time.Second
	idleLookMost  = 30 * time.Second
	idleAfter     = 15 * time.Second
)

var errConnectionLost = errors.New("the connection to NATS was lost")

// standBy waits until this process may claim the partition, and returns the pin; empty
// when it goes on without one. Once soft has ended what it returns means nothing.
//
// A pinned replica claims again, fenced or not, since no other gets a row:
//
//	A has no pin, and its request waits. B sees nobody pinned, claims, and resets the consumer: the rows and the pin
//	go to A, which learns that it is fenced and releases both.
//	The pin runs out. Every row is taken, nobody is pinned: C claims without a pin, and its reset brings all to B. This
//	repeats.
func (c *Consumer) standBy(soft context.Context, durable *streams.Durable, lost <-chan nats.Status) (pin string, err error) {
	for {
		if err := c.awaitTurn(soft, durable, lost); err != nil {
			return "", err
		}
		if pin, err := c.stillPinned(soft, durable); pin != "" || err != nil {
			return pin, err
		}
		pin, passed, err := c.askForPin(soft, durable, lost)
		c.cfg.Spread.StandBy(c.cfg.Partition, false)
		if err != nil || !passed {
			return pin, err
		}
		c.cfg.Spread.Own(c.cfg.Partition, spread.NotHeld)
	}
}

// keepPin keeps the pin of a term that ended with err, where it was fenced.
func (c *Consumer) keepPin(pin string, err error) {
	if errors.Is(err, ErrFenced) {
		c.fencedPin = pin
	}
}

// stillPinned returns the pin that was kept, if it is still valid; else none. It works
// once for each pin.
func (c *Consumer) stillPinned(soft context.Context, durable *streams.Durable) (pin string, err error) {
	kept := c.fencedPin
	if c.fencedPin = ""; kept == "" {
		return "", nil
	}
	info, err := c.look(soft, durable)
	if err != nil || pinned(info) != kept {
		return "", err
	}
	return kept, nil
}

// awaitTurn waits until the spread gives the partition to this replica, or until it no
// longer stands aside. Meanwhile it looks whether rows wait that nobody serves, when the
// spread asks for that.
func (c *Consumer) awaitTurn(soft context.Context, durable *streams.Durable, lost <-chan nats.Status) error {
	shares, partition := c.cfg.Spread, c.cfg.Partition
	unserved := 0
	if !c.mayServe() {
		c.problems.clear(problemOwnership) // the durable consumer was opened since, and nobody may look at it for long
	}
	for !c.mayServe() {
		var due <-chan time.Time
		if shares == nil {
			due = time.After(asideLook)
			if unserved > 0 {
				due = time.After(c.cfg.PinnedTTL * 11 / 10)
			}
		} else if at := shares.LookAt(partition); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-soft.Done():
			return context.Cause(soft)
		case <-lost:
			return errConnectionLost
		case <-c.mail.signal:
			c.collect()
		case <-shares.Changes(partition):
		case <-c.steer.changed:
		case <-due:
			if shares == nil {
				if err := c.lookAside(soft, durable, &unserved); err != nil {
					return err
				}
				continue
			}
			if err := c.lookForOthers(soft, durable); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookForOthers looks at a partition that another replica should serve.
func (c *Consumer) lookForOthers(soft context.Context, durable *streams.Durable) error {
	info, err := c.look(soft, durable)
	if err != nil {
		return err
	}
	seen := spread.Sight{Pinned: pinned(info) != "", Rows: info.NumPending+uint64(info.NumAckPending) > 0}
	if seen.Rows && !seen.Pinned || c.cfg.Spread.Disputed(c.cfg.Partition) {
		end, err := c.readEnd(soft)
		if err != nil {
			return err
		}
		seen.Log, seen.Owner = true, end.owner
	}
	c.cfg.Spread.Saw(c.cfg.Partition, seen)
	if c.cfg.Spread.Should(c.cfg.Partition) {
		c.log.Info("rows are pending and no replica serves the partition, taking it over", slog.Uint64("pending", info.NumPending))
	}
	return nil
}

func (c *Consumer) look(soft context.Context, durable *streams.Durable) (*jetstream.ConsumerInfo, error) {
	info, err := durable.Info(soft)
	if err != nil {
		return nil, err
	}
	if pinned(info) != "" || info.NumPending == 0 && info.NumAckPending == 0 {
		c.problems.clear(problemOwnership) // what blocked an earlier term is no concern of a standby
	}
	return info, nil
}

// askForPin asks for rows until one brings the pin, or nobody turns out to hold it;
// passed says that the turn has gone to another replica in the meantime.
//
// The server grants the pin only together with a row. None can be delivered while every
// row is taken and unacked, so an owner that died so would never be replaced; then a
// standby that finds nobody pinned, twice, goes on without a pin: the first row after the
// reset brings it. The random wait keeps ten standbys from claiming at once.
func (c *Consumer) askForPin(soft context.Context, durable *streams.Durable, lost <-chan nats.Status) (pin string, passed bool, err error) {
	p, err := c.newPuller(durable, "", c.cfg.PinnedTTL/2)
	if err != nil {
		return "", false, err
	}
	defer p.close()
	v := newVacancy(c)
	look := v.began.Add(promptLook) // when to look whether anybody is pinned, if nothing comes before
	for {
		now := time.Now()
		next, err := p.step(now, 1, 1<<30, true)
		if err != nil {
			return "", false, err
		}
		select {
		case <-soft.Done():
			return "", false, context.Cause(soft)
		case <-lost:
			return "", false, errConnectionLost
		case <-c.mail.signal:
			c.collect()
			continue
		case <-c.steer.changed:
			if !c.mayServe() {
				return "", true, nil
			}
			continue
		case <-c.cfg.Spread.Changes(c.cfg.Partition):
			if !c.cfg.Spread.Should(c.cfg.Partition) {
				return "", true, nil // a row that comes to the request in flight is found missing by its next owner
			}
			v.idle, look = v.usual, earlier(look, now.Add(rand.N(orphanWaitMax))) // another replica may be gone
			continue
		case m := <-p.msgs:
			row, err := p.received(m, time.Now())
			if err != nil {
				return "", false, err
			}
			switch {
			case row && p.unnamed:
				info, err := c.look(soft, durable)
				if err != nil {
					return "", false, err
				}
				return pinned(info), false, nil
			case row:
				return p.pin, false, nil
			}
			continue
		case <-time.After(earlier(look, next).Sub(now)):
			if time.Now().Before(look) {
				continue
			}
		}
		info, err := c.look(soft, durable)
		if err != nil {
			return "", false, err
		}
		c.cfg.Spread.StandBy(c.cfg.Partition, true)
		orphaned, wait := v.saw(soft, info)
		if orphaned {
			return "", false, nil
		}
		look = time.Now().Add(wait)
	}
}

// vacancy is what a standby has seen of a partition that may have no owner.
type vacancy struct {
	c        *Consumer
	began    time.Time
	usual    time.Duration // between two looks
	idle     time.Duration // while no row waits
	idleMost time.Duration
	seen     bool // rows are taken or missing, and nobody is pinned
	compared bool // the results with the acks, see endsShort
	short    bool
}

func newVacancy(c *Consumer) *vacancy {
	usual := c.cfg.PinnedTTL + c.cfg.PinnedTTL/10
	v := &vacancy{c: c, began: time.Now(), usual: usual, idle: usual, idleMost: idleLookMost}
	if c.cfg.Spread == nil {
		v.idleMost = idleLookAlone
	}
	return v
}

// saw takes a look at the consumer. Orphaned says that the partition has no owner, seen
// twice; else the next look is after wait.
func (v *vacancy) saw(ctx context.Context, info *jetstream.ConsumerInfo) (orphaned bool, wait time.Duration) {
	if pinned(info) != "" {
		// A pinned replica may set the consumer behind rows that it holds, and die:
		// compare again then.
		v.seen, v.compared, v.short, v.idle = false, false, false, v.usual
		return false, v.usual
	}
	idle := info.NumPending == 0 && info.NumAckPending == 0
	if idle && !v.compared {
		v.compared, v.short = v.c.endsShort(ctx, info)
	}
	switch {
	case info.NumAckPending > 0 || v.short:
		orphaned, v.seen = v.seen, true
		return orphaned, rand.N(orphanWaitMax)
	case !idle:
		v.seen = false
		return false, v.usual
	}
	v.seen = false
	wait = v.idle
	if time.Since(v.began) > idleAfter {
		v.idle = min(2*v.idle, v.idleMost)
	}
	return false, wait
}

// endsShort reports whether the results end before a row that is acked, or that the
// consumer was set behind: a power cut has taken what the server had not synced to the
// disk, they are restored from a backup, or an owner died that had reset the consumer to
// the row after those that it held. With every row acked, none would come that brings the
// pin, and the results would stay short until the next new row. Without an answer it is
// unknown.
func (c *Consumer) endsShort(ctx context.Context, info *jetstream.ConsumerInfo) (known, short bool) {
	end, err := c.readEnd(ctx)
	if err != nil {
		return false, false
	}
	next, err := c.nextInput(ctx, end.low+1)
	return err == nil, next != 0 && next <= info.AckFloor.Stream
}

// pinned is the pin that the server holds; empty when nobody is pinned.
func pinned(info *jetstream.ConsumerInfo) string {
	for _, g := range info.PriorityGroups {
		if g.Group == streams.PinGroup {
			return g.PinnedClientID
		}
	}
	return ""
}

// collect takes the replies that arrive between two terms.
func (c *Consumer) collect() {
	rows := c.mail.take(nil)
	for _, row := range rows {
		c.answeredLate(row)
	}
	c.resumeIf(c.mail.count(len(rows), 0))
}

// connectedLook is the time between two looks at a connection that is lost.
const connectedLook = 100 * time.Millisecond

// connected waits for a connection, or until ctx ends.
func (c *Consumer) connected(ctx context.Context) error {
	for range streams.Retry(ctx, connectedLook, connectedLook) {
		c.adopt()
		if c.nc.IsConnected() {
			c.problems.clear(problemConnection)
			break
		}
		if c.nc.IsClosed() && !c.cfg.Moves {
			return fatal(fmt.Errorf("consumer: %w", errors.Join(nats.ErrConnectionClosed, c.nc.LastError())))
		}
		why := errors.New("not connected to NATS")
		if last := c.nc.LastError(); last != nil {
			why = fmt.Errorf("%w: %w", why, last)
		}
		c.problems.set(problemConnection, why)
	}
	return nil
}
