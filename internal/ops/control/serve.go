package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/nats-io/nats.go"
)

const (
	// queue is how many orders may wait: what does not fit is dropped, and its sender
	// gets no answer.
	queue = 64
	// remembered is how many orders are recognised when they come again.
	remembered = 256
	// strangersEvery is the shortest time between two lines about messages that are no
	// orders.
	strangersEvery = time.Minute
)

// Replica is the replica that obeys orders.
type Replica struct {
	Stage string
	ID    string // its run id
	Host  string
	// Do carries an order out, and returns what it did. It is called for one order at a
	// time, and must end soon.
	Do  func(context.Context, *Order) (Outcome, string)
	Log *slog.Logger
	// Moved passes the connection that takes the place of the present one, when that was
	// closed for good. It is nil if there is never another one.
	Moved <-chan *nats.Conn
}

// Serve carries out the orders to a replica until ctx ends.
func Serve(ctx context.Context, nc *nats.Conn, r Replica) {
	orders := make(chan *nats.Msg, queue)
	s := &listener{Replica: r, nc: nc}
	stop := s.listen(orders)
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case s.nc = <-r.Moved:
			stop = s.listen(orders)
		case m := <-orders:
			s.handle(ctx, m)
		}
	}
}

// listener is a replica that obeys.
type listener struct {
	Replica
	nc       *nats.Conn
	done     []Answer  // the last ones, by Order
	stranger time.Time // when a message that is no order was last logged
}

// listen sends orders to a channel until stop is called.
func (s *listener) listen(orders chan *nats.Msg) (stop func()) {
	sub, err := s.nc.ChanSubscribe(Subject(s.Stage), orders)
	if err != nil {
		s.Log.Warn("orders are not heard: no subscription", slog.String("subject", Subject(s.Stage)), slog.Any("error", err))
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() } // no listener remains either way
}

// handle carries out a message. A sender whose answer was lost sends the order again, and
// gets the same answer.
func (s *listener) handle(ctx context.Context, m *nats.Msg) {
	o, err := read(m.Data, time.Now())
	switch {
	case errors.Is(err, errForeign):
		if now := time.Now(); now.Sub(s.stranger) >= strangersEvery {
			s.stranger = now
			s.Log.Warn("message on the subject of orders ignored", slog.Any("error", err))
		}
		return
	case !o.isFor(s.ID):
		return
	case err != nil:
		s.Log.Warn("order refused", slog.String("order", string(o.Verb)), slog.String("by", o.By.Detail()), slog.Any("error", err))
		s.reply(m, Answer{Order: o.ID, Outcome: Refused, Text: err.Error()})
		return
	}
	if i := slices.IndexFunc(s.done, func(a Answer) bool { return a.Order == o.ID }); i >= 0 {
		s.reply(m, s.done[i])
		return
	}
	a := Answer{Order: o.ID}
	a.Outcome, a.Text = s.Do(ctx, &o)
	a.Text = excerpt.Clip(a.Text, outcomeBytesMax)
	if len(s.done) == remembered {
		s.done = slices.Delete(s.done, 0, 1)
	}
	s.done = append(s.done, a)
	s.reply(m, a)
}

func (s *listener) reply(m *nats.Msg, a Answer) {
	if m.Reply == "" {
		return
	}
	a.Format, a.Replica, a.Host = Format, s.ID, s.Host
	body, err := json.Marshal(&a)
	if err == nil {
		err = s.nc.Publish(m.Reply, body)
	}
	if err != nil {
		s.Log.Warn("the answer to an order was not sent", slog.Any("error", err))
	}
}
