package natsconn

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// dialFirst and dialMost bound the wait before a connection that was closed is
	// replaced.
	dialFirst = 250 * time.Millisecond
	dialMost  = 5 * time.Second
	// lasting is how long a connection must last for its end to be a new problem. One
	// that the server closes sooner, at the first subject that it does not take, say, is
	// part of the old one: it counts as no connection until it has lasted.
	lasting = 10 * time.Second
)

// OnMove has f called with each connection that replaces an earlier one, until stop is
// called. F must not block, and must not call methods of c that wait for it.
func (c *Conn) OnMove(f func(*nats.Conn)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.movers)
	c.movers = append(c.movers, f)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.movers[i] = func(*nats.Conn) {}
	}
}

// Replaceable reports whether [Conn.Keep] can replace the connection.
func (c *Conn) Replaceable() bool { return c != nil && c.dial != nil }

// Keep makes another connection each time that the present one is closed for good, until
// ctx ends. The client library reconnects by itself after most errors. But it closes the
// connection at an error of the server that it does not know, such as a message above a
// max_payload that was lowered while the server runs, and a closed connection stays
// closed. A process must not end because of that: it would pay again for all replies that
// it holds. It makes the present connection again, too, where only a new one learns what
// the server allows by now.
func (c *Conn) Keep(ctx context.Context, log *slog.Logger) {
	if c.dial == nil {
		return
	}
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() { c.renew(ctx, log) })
	report := reporter(log)
	wait := dialFirst
	for short := 0; c.awaitClosing(ctx); {
		why := cmp.Or(c.NC().LastError(), nats.ErrConnectionClosed)
		c.mu.Lock()
		if time.Since(c.made) >= lasting {
			short, wait = 0, dialFirst
		}
		short++
		c.closing, c.unsteady = why, short > 1
		c.mu.Unlock()
		report(fmt.Errorf("the connection was closed, connecting again: %w", withLaterHint(&c.login, why)))
		wait = c.replace(ctx, wait, log, report)
	}
}

// awaitClosing waits until the connection is closed; false means ctx has ended before.
func (c *Conn) awaitClosing(ctx context.Context) bool {
	nc := c.NC()
	closed := nc.StatusChanged(nats.CLOSED)
	defer nc.RemoveStatusListener(closed)
	if nc.IsClosed() {
		return ctx.Err() == nil
	}
	select {
	case <-closed:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// replace makes another connection after wait, has all move to it, and returns how long
// to wait before the next, should this one not last.
func (c *Conn) replace(ctx context.Context, wait time.Duration, log *slog.Logger, report func(error)) (next time.Duration) {
	for range streams.Retry(ctx, wait, dialMost) {
		if next == 0 {
			next = min(2*wait, dialMost)
			continue // the first attempt comes after a wait, too
		}
		nc, err := c.dial(ctx)
		if err == nil && nc.IsClosed() {
			err = cmp.Or(nc.LastError(), nats.ErrConnectionClosed)
		}
		if err != nil {
			c.mu.Lock()
			c.closing = err
			c.mu.Unlock()
			report(withLaterHint(&c.login, err))
			continue
		}
		c.mu.Lock()
		c.nc, c.made = nc, time.Now()
		movers, unsteady := slices.Clone(c.movers), c.unsteady
		c.mu.Unlock()
		if !unsteady {
			log.Info("connection to NATS is back", slog.String("url", nc.ConnectedUrlRedacted()), slog.Int64("max_payload", nc.MaxPayload()))
		}
		for _, move := range movers {
			move(nc)
		}
		break
	}
	return next
}

// Down returns why there is no connection at the moment, and what to do about it; empty
// means that there is one.
func (c *Conn) Down() string {
	c.mu.Lock()
	nc, closing, unsteady := c.nc, c.closing, c.unsteady && time.Since(c.made) < lasting
	c.mu.Unlock()
	if nc.IsConnected() && !unsteady {
		return ""
	}
	if !nc.IsClosed() && !unsteady {
		closing = nc.LastError() // the library reconnects
	}
	const why = "not connected to NATS"
	if err := withLaterHint(&c.login, closing); err != nil {
		return why + ": " + err.Error()
	}
	return why
}
