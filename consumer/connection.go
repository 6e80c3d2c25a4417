package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connection is the connection to NATS that all parts of a consumer work over. It is the
// same from the beginning of a term to its end: the goroutine of [Consumer.Run] replaces
// it between two terms, by the one that [Consumer.Use] has brought. For example, a client
// whose token has expired is closed for good, its term ends, and the next term works over
// the connection with the new token.
type connection struct {
	nc *nats.Conn
	js jetstream.JetStream
	// next is the connection to use from the next term on; nil means the present one.
	next atomic.Pointer[nats.Conn]
	// published are the subjects that a stage publishes on, for [connection.denied].
	published []string
}

// errConnectionLost ends a term, or a wait for one.
var errConnectionLost = errors.New("the connection to NATS was lost")

// connectedLook is the time between two looks at a connection that is lost.
const connectedLook = 100 * time.Millisecond

// await waits for a connection, or until ctx ends. moves is [Config.Moves].
func (c *connection) await(ctx context.Context, moves bool, p *problems) error {
	for range streams.Retry(ctx, connectedLook, connectedLook) {
		c.adopt()
		if c.nc.IsConnected() {
			p.clear(problemConnection)
			break
		}
		if c.nc.IsClosed() && !moves {
			return fatal(fmt.Errorf("consumer: %w", errors.Join(nats.ErrConnectionClosed, c.nc.LastError())))
		}
		why := errors.New("not connected to NATS")
		if last := c.nc.LastError(); last != nil {
			why = fmt.Errorf("%w: %w", why, last)
		}
		p.set(problemConnection, why)
	}
	return nil
}

// adopt takes the connection of [Consumer.Use], if there is another.
func (c *connection) adopt() {
	nc := c.next.Swap(nil)
	if nc == nil {
		return
	}
	js, err := streams.JetStream(nc)
	if err != nil {
		panic(fmt.Sprintf("consumer: %v", err)) // only options could be wrong, and there are none
	}
	c.nc, c.js = nc, js
}

// denied completes an error by the permission that is missing, where the server has
// reported one.
func (c *connection) denied(err error) error { return streams.Denied(c.nc, err, c.published...) }
