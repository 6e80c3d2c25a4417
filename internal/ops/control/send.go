package control

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/nats-io/nats.go"
)

// Patience is how long answers are waited for. After sendAgain the order is sent once more:
// a replica that was reconnecting has missed the first one, and a replica that has carried
// it out does not do so twice.
const (
	Patience  = 5 * time.Second
	sendAgain = 2 * time.Second
)

// Send sends an order to a stage, and returns the answer of each replica by its run id. It
// sets the order's Format, ID and Time. It waits until all replicas that the order names
// have answered, at most for [Patience]: for an order that names none it does not wait. A
// replica without an answer is missing in the map. The error says what is wrong with the
// connection or with the permissions.
func Send(ctx context.Context, nc *nats.Conn, stage string, o Order) (map[string]Answer, error) {
	o.Format, o.ID, o.Time = Format, rand.Text(), time.Now().UTC()
	body, err := json.Marshal(&o)
	if err != nil {
		return nil, err
	}
	if len(body) > orderBytesMax {
		return nil, fmt.Errorf("the order has %d bytes, at most %d are allowed: name fewer replicas", len(body), orderBytesMax)
	}
	heard := make(chan *nats.Msg, 2*replicasMax)
	inbox := nc.NewInbox()
	sub, err := nc.ChanSubscribe(inbox, heard)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // no listener remains either way
	send := func() error {
		// The client would send the order once it is connected again, however late.
		if !nc.IsConnected() {
			return errors.New("not connected to NATS: nothing was sent")
		}
		return nc.PublishRequest(Subject(stage), inbox, body)
	}
	if err := send(); err != nil {
		return nil, err
	}
	answers := make(map[string]Answer)
	over, again := time.NewTimer(Patience), time.NewTimer(sendAgain)
	defer over.Stop()
	defer again.Stop()
	for len(answers) < len(o.Replicas) {
		select {
		case m := <-heard:
			if a, ok := readAnswer(m.Data, &o); ok {
				answers[a.Replica] = a
			}
		case <-again.C:
			_ = send() // the first one may have arrived
		case <-over.C:
			if len(answers) == 0 {
				if denied := streams.Violation(nc, Subject(stage)); denied != nil {
					return nil, denied
				}
			}
			return answers, nil
		case <-ctx.Done():
			return answers, context.Cause(ctx)
		}
	}
	return answers, nil
}

// readAnswer reads an answer to an order. ok is false unless it is one, from a replica that
// the order is for.
func readAnswer(body []byte, o *Order) (a Answer, ok bool) {
	if len(body) > orderBytesMax || json.Unmarshal(body, &a) != nil || a.Order != o.ID || !o.isFor(a.Replica) {
		return a, false
	}
	switch a.Outcome {
	case Done, Nothing, Refused:
	default: // of a later version
		a.Outcome = Done
	}
	a.Host, a.Text = excerpt.Clip(a.Host, textBytesMax), excerpt.Clip(a.Text, outcomeBytesMax)
	return a, true
}
