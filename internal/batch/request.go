package batch

import (
	"context"
	"errors"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// searchMax is how long to search for a stage, every searchEvery: one may be about to
	// start, or to take over.
	searchMax   = 5 * time.Second
	searchEvery = 200 * time.Millisecond
	// answerMax bounds the wait for the server to say whether a stage has the request.
	answerMax = 5 * time.Second
)

// ErrSlow is returned by [Request] when a stage has the request and sends no reply in time.
var ErrSlow = errors.New("no reply in time")

// Request sends a request on a subject of the stages of a name, one of which replies. It
// waits for the reply of a stage that has the request, for the time-out if that is not 0.
// Where no stage answers the error is [nats.ErrNoResponders], whatever the time-out: it
// searches for at least one round trip and at most five seconds. It is [ErrSlow] where a
// stage takes longer than the time-out, and what [streams.Violation] says where the user
// may not send a request.
func Request(
	ctx context.Context, nc *nats.Conn, subject string, request []byte, timeout time.Duration,
) (*nats.Msg, error) {
	var late <-chan time.Time // nil: never
	search := searchMax
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late, search = timer.C, min(search, timeout)
	}
	for end := time.Now().Add(search); ; {
		reply, err := requestOnce(ctx, nc, subject, request, late)
		if !errors.Is(err, nats.ErrNoResponders) || !time.Now().Before(end) {
			return reply, err
		}
		select {
		case <-time.After(min(searchEvery, time.Until(end))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// requestOnce sends the request once. The server says that nobody takes it before it
// answers a ping that was sent after it, and so it does with a permission that is
// missing. So what the ping finds needs no time-out.
func requestOnce(
	ctx context.Context, nc *nats.Conn, subject string, request []byte, late <-chan time.Time,
) (*nats.Msg, error) {
	replies := make(chan *nats.Msg, 1)
	sub, err := nc.ChanSubscribe(nc.NewInbox(), replies)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is closed
	if err := nc.PublishRequest(subject, sub.Subject, request); err != nil {
		return nil, err
	}
	pinged, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	if err := nc.FlushWithContext(pinged); err != nil && ctx.Err() == nil {
		return nil, err
	}
	if err := streams.Violation(nc, subject); err != nil {
		return nil, err
	}
	select { // a reply that is there counts, even if it is late
	case m := <-replies:
		return answered(m)
	default:
	}
	select {
	case m := <-replies:
		return answered(m)
	case <-late:
		return nil, ErrSlow
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// answered returns the reply of a stage, or the server's answer that there is none.
func answered(m *nats.Msg) (*nats.Msg, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return nil, nats.ErrNoResponders
	}
	return m, nil
}
