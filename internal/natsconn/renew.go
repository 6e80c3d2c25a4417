package natsconn

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// renewEvery is the time between two looks at whether the connection must be made again.
const renewEvery = time.Minute

// renew replaces the connection where the server has undone a restriction and announces
// that only to new connections, until ctx ends. Otherwise the process would have to be
// restarted. There are two cases:
//
//   - A server with a new max_payload does not announce it. It closes a connection for a
//     message that is too large, and the next connection knows the lower limit. After the
//     limit was raised again, the client library still refuses larger messages.
//   - A user who may no longer subscribe to its inbox loses these subscriptions, and with
//     them all answers. The server does not restore them with the permission.
func (c *Conn) renew(ctx context.Context, log *slog.Logger) {
	r := renewal{c: c, most: c.NC().MaxPayload()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEvery):
		}
		nc := c.NC()
		why := r.due(ctx, nc)
		if why == "" {
			continue
		}
		log.Info("connecting to NATS again", slog.String("reason", why))
		if err := nc.ForceReconnect(); err != nil {
			log.Warn("connect to NATS again", slog.Any("error", err))
		}
	}
}

// renewal decides when the connection is made again.
type renewal struct {
	c       *Conn
	most    int64 // largest max_payload that a connection has had
	renewed bool  // by the last look, because of that
}

// due looks at the connection, and returns why it must be made again; empty means that it
// need not. While the server takes smaller messages than it once did, each look makes
// another connection, to learn what the server takes now.
func (r *renewal) due(ctx context.Context, nc *nats.Conn) (why string) {
	if !nc.IsConnected() {
		return ""
	}
	payload := nc.MaxPayload()
	if r.renewed && payload < r.most {
		r.most = payload // of several servers, one takes larger messages, and this is another
	}
	r.most, r.renewed = max(r.most, payload), false
	if streams.InboxDenied(nc) {
		return "its subscriptions for answers were denied, and may be allowed again"
	}
	if payload == r.most {
		return ""
	}
	now, err := r.c.dial(ctx)
	if err != nil {
		return ""
	}
	defer now.Close()
	if now.MaxPayload() <= payload {
		return ""
	}
	r.renewed = true
	return fmt.Sprintf("max_payload of the server was raised from %d to %d", payload, now.MaxPayload())
}
