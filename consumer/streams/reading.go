package streams

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Delivered reports whether a consumer's answer to a pull request is a stored message;
// otherwise it is a status of the request. The reply subject decides, which the server
// writes. The publisher of a row decides about everything else: a row without a body and
// with a header "Status: 404" looks exactly like the server's "no messages", and a client
// that goes by the headers, as nats.go does, never gets past it.
func Delivered(m *nats.Msg) bool { return strings.HasPrefix(m.Reply, ackPrefix) }

const ackPrefix = "$JS.ACK."

// Added returns the value of a header that the server has added to a stored message. It
// is empty if the server has not. It is the last one of its name, since the server writes
// its own behind those that the message was stored with.
func Added(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

// StatusOf returns code and description of a status message.
func StatusOf(m *nats.Msg) (code, description string) {
	return m.Header.Get("Status"), m.Header.Get("Description")
}

const (
	// readAhead is how many messages a [Reading] requests at once, readAheadBytes how
	// many bytes.
	readAhead      = 1000
	readAheadBytes = 8 << 20
	// readExpires is how long a request of a reading lasts, readHeartbeat how often the
	// server confirms meanwhile that it still knows the request.
	readExpires   = 30 * time.Second
	readHeartbeat = 2 * time.Second
)

// HeaderMessageSize holds the size of the body. The server adds it to each message that
// it sends without its body.
const HeaderMessageSize = "Nats-Msg-Size"

// ErrDeliveryLost is returned by [Reading.Next] when a message did not arrive.
var ErrDeliveryLost = errors.New("deliveries get lost")

// ErrNoMore means that there is no further message, or none at the moment.
var ErrNoMore = errors.New("no more messages")

// Reading is a consumer that was made to read messages of a stream once, in order. What
// it has fetched and not returned yet is bounded in messages and in bytes. After an error
// of [Reading.Next] it is of no more use.
//
// Not safe for concurrent use. The caller must close it.
type Reading struct {
	// Left is how many messages are behind the last one returned, by the server's
	// estimate.
	Left uint64
	// Before is the stream sequence of the message before the first one that the consumer
	// delivers, as far as the server says.
	Before uint64

	nc      *nats.Conn
	api     string // prefix of the API of JetStream
	stream  string
	name    string // of the consumer
	closed  bool
	headers bool // without bodies
	most    int  // bytes that one request asks for
	inbox   string
	sub     *nats.Subscription
	msgs    chan *nats.Msg
	silence *time.Timer

	order   uint64 // consumer sequence of the last delivery
	request uint64 // number of the last request, with which its inbox ends
	left    int    // messages that it may still bring; 0 while no request is in flight
	bytes   int    // likewise
	brought bool   // it has brought a message
	large   bool   // the next message is larger than a request asks for, so one message of any size is requested
}

// Read makes a consumer of a stream that begins where cfg says. The other fields of cfg
// that matter are set here, but for InactiveThreshold.
func Read(
	ctx context.Context, js jetstream.JetStream, stream string, cfg jetstream.ConsumerConfig,
) (*Reading, error) {
	cfg.Name = readingPrefix + rand.Text()
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas = jetstream.AckNonePolicy, true, 1
	consumer, err := createReading(ctx, js, stream, cfg)
	if err != nil {
		return nil, err
	}
	info := consumer.CachedInfo()
	r := &Reading{
		Left: info.NumPending, name: cfg.Name, Before: info.Delivered.Stream,
		nc: js.Conn(), api: APIPrefix(js.Conn()), stream: stream, headers: cfg.HeadersOnly,
		most: max(readAheadBytes, 2*int(js.Conn().MaxPayload())), inbox: js.Conn().NewInbox() + ".",
		// Room for all that one request may bring: its messages, its heartbeats, and the
		// status at its end.
		msgs:    make(chan *nats.Msg, readAhead+int(readExpires/readHeartbeat)+16),
		silence: time.NewTimer(RequestTimeout),
	}
	if r.sub, err = r.nc.ChanSubscribe(r.inbox+"*", r.msgs); err != nil {
		deleteReading(r.nc, stream, r.name)
		return nil, fmt.Errorf("subscribe to messages: %w", err)
	}
	return r, nil
}

// Close ends the reading, and has the server remove the consumer. It does not block, and
// may be called more than once.
func (r *Reading) Close() {
	if r.closed {
		return
	}
	r.closed = true
	r.silence.Stop()
	_ = r.sub.Unsubscribe()
	deleteReading(r.nc, r.stream, r.name)
}

// ask requests messages.
func (r *Reading) ask() error {
	req := struct {
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
		Batch     int           `json:"batch"`
		MaxBytes  int           `json:"max_bytes,omitempty"`
	}{readExpires, readHeartbeat, readAhead, r.most}
	if r.large {
		req.Batch, req.MaxBytes = 1, 0
	}
	r.left, r.bytes, r.large, r.brought = req.Batch, req.MaxBytes, false, false
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	r.request++
	reply := r.inbox + strconv.FormatUint(r.request, 36)
	return r.nc.PublishRequest(r.api+"CONSUMER.MSG.NEXT."+r.stream+"."+r.name, reply, body)
}

// Next returns the next message. Without a body, its headers are those that it is stored
// with, and [Added] ones. It is nil where a request has ended without any message: there
// may be none at the moment, or a delivery may have got lost. The error is [ErrNoMore]
// when late is ready before there is a message, and another one when the server does not
// answer, the consumer is gone, or a message did not arrive.
func (r *Reading) Next(
	ctx context.Context, late <-chan time.Time,
) (*jetstream.RawStreamMsg, error) {
	for {
		if r.left == 0 {
			if err := r.ask(); err != nil {
				return nil, err
			}
		}
		m, err := r.receive(ctx, late)
		if err != nil {
			return nil, err
		}
		if Delivered(m) {
			return r.delivered(ctx, m)
		}
		ended, err := r.status(m)
		if err != nil || ended && !r.brought && !r.large {
			return nil, err
		}
	}
}

// All returns what Next does until no message is left. After an error there is none.
func (r *Reading) All(ctx context.Context) iter.Seq2[*jetstream.RawStreamMsg, error] {
	return func(yield func(*jetstream.RawStreamMsg, error) bool) {
		for r.Left > 0 {
			m, err := r.Next(ctx, nil)
			if err == nil && m == nil {
				err = ErrDeliveryLost
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// receive returns the next answer of the server.
func (r *Reading) receive(ctx context.Context, late <-chan time.Time) (*nats.Msg, error) {
	select {
	case m := <-r.msgs: // the rule, and it takes no timer
		return m, nil
	default:
	}
	r.silence.Reset(RequestTimeout)
	select {
	case m := <-r.msgs:
		return m, nil
	case <-late:
		return nil, ErrNoMore
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.silence.C:
		return nil, Denied(r.nc, nats.ErrTimeout)
	}
}

// delivered takes a message.
func (r *Reading) delivered(ctx context.Context, m *nats.Msg) (*jetstream.RawStreamMsg, error) {
	md, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	if md.Sequence.Consumer != r.order+1 {
		return nil, fmt.Errorf("%w: one before message %d", ErrDeliveryLost, md.Sequence.Stream)
	}
	r.order, r.Left, r.brought = md.Sequence.Consumer, md.NumPending, true
	r.left--
	if r.bytes > 0 {
		if r.bytes -= m.Size(); r.bytes <= 0 { // the server does not say that it is over
			r.left = 0
		}
	}
	raw := &jetstream.RawStreamMsg{
		Subject: m.Subject, Sequence: md.Sequence.Stream,
		Header: m.Header, Data: m.Data, Time: md.Timestamp,
	}
	if r.headers && Added(m.Header, HeaderMessageSize) == "" {
		raw.Header, err = StoredHeader(ctx, r.nc, r.stream, raw.Sequence)
	}
	return raw, err
}

// status takes a status message, and reports whether the request in flight ended with it.
func (r *Reading) status(m *nats.Msg) (ended bool, err error) {
	if m.Subject != r.inbox+strconv.FormatUint(r.request, 36) || r.left == 0 {
		return false, nil // it comes late, from a request that is over
	}
	code, why := StatusOf(m)
	switch {
	case code == "100": // heartbeat
		return false, nil
	case code == "404", code == "408": // no messages, or the time is up
	case strings.Contains(strings.ToLower(why), "batch completed"):
	case strings.Contains(strings.ToLower(why), "maxbytes"):
		r.large = !r.brought
	case code == "503":
		return false, nats.ErrNoResponders
	default: // the consumer was deleted or changed its leader, or the server shuts down
		return false, fmt.Errorf("the server ended the request: %s",
			strings.TrimSpace(code+" "+why))
	}
	r.left = 0
	return true, nil
}
