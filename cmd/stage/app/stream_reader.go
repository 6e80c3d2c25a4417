package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// readAhead is how many messages are asked for at once, readAheadBytes how many bytes; the largest must fit.
	readAhead      = 1000
	readAheadBytes = 8 << 20
	// readTimeout bounds a request. A leader election takes about four seconds.
	readTimeout = 10 * time.Second
	// readRetries is how often in a row reading may come to nothing, a second apart.
	readRetries = 20
)

// readOptions say what a [streamReader] reads.
type readOptions struct {
	stream  string
	filters []string
	// from is the sequence to begin at; 0: the first. With since or newOnly it is not used.
	from uint64
	// since is when to begin; newOnly begins with what is stored from now on.
	since   time.Time
	newOnly bool
	// until is the last sequence to read; 0: that of the last message when the reader gets there.
	until uint64
	// follow goes on with what comes, until the context ends.
	follow bool
	// headersOnly leaves the bodies out.
	headersOnly bool
}

// streamReader reads messages of a stream in order. What it has asked for and not handed out is bounded in messages and in
// bytes. The library's own reader that is bounded in both has no room for the server's status messages beside a full
// batch, and loses deliveries; the one that makes a consumer for each batch is bounded in messages alone.
type streamReader struct {
	js jetstream.JetStream
	readOptions
	fetch func(jetstream.Consumer) (jetstream.MessageBatch, error)
	stop  context.CancelFunc

	consumer jetstream.Consumer
	batch    jetstream.MessageBatch
	order    uint64 // of the last message, as the consumer counts
	asked    uint64 // what order was when the batch was asked for
	at       uint64 // of the last message, in the stream
	left     uint64 // messages that were behind it, beyond the bound too
	tried    int
	begun    bool
	done     bool
}

// openReader begins to read one filter up to a sequence. The caller must close it.
func openReader(ctx context.Context, js jetstream.JetStream, stream, filter string, until uint64, headersOnly bool) (*streamReader, error) {
	return openStream(ctx, js, readOptions{stream: stream, filters: []string{filter}, until: until, headersOnly: headersOnly})
}

// openStream begins to read. The caller must close it.
func openStream(ctx context.Context, js jetstream.JetStream, o readOptions) (*streamReader, error) {
	if o.until == 0 {
		o.until = math.MaxUint64
	}
	r := &streamReader{js: js, readOptions: o, at: max(1, o.from) - 1}
	fetching, stop := context.WithCancel(ctx)
	r.stop = stop
	bytes := max(readAheadBytes, 2*int(js.Conn().MaxPayload()))
	r.fetch = func(c jetstream.Consumer) (jetstream.MessageBatch, error) {
		return c.Fetch(readAhead, jetstream.FetchMaxBytes(bytes), jetstream.FetchContext(fetching))
	}
	err := r.begin(ctx)
	if err == nil && r.left == 0 {
		err = r.ask(ctx)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return r, nil
}

// close ends the reading. The server forgets the consumer by itself.
func (r *streamReader) close() { r.stop() }

// begin makes a consumer of its own, which goes on behind the last message.
func (r *streamReader) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	cfg := jetstream.ConsumerConfig{
		HeadersOnly: r.headersOnly, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 5 * time.Minute,
	}
	if len(r.filters) == 1 {
		cfg.FilterSubject = r.filters[0]
	} else {
		cfg.FilterSubjects = r.filters
	}
	switch {
	case !r.begun && r.newOnly:
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	case !r.begun && !r.since.IsZero():
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &r.since
	default:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, r.at+1
	}
	c, err := r.js.CreateConsumer(ctx, r.stream, cfg)
	if err != nil {
		return fmt.Errorf("read %s: %w", r.what(), err)
	}
	info := c.CachedInfo()
	r.consumer, r.batch, r.order, r.left = c, nil, 0, info.NumPending
	if !r.begun {
		r.begun, r.at = true, max(r.at, info.Delivered.Stream) // where another consumer would have to begin
	}
	return nil
}

func (r *streamReader) what() string { return strings.Join(r.filters, ", ") + " of stream " + r.stream }

// next returns the next message and its sequence; nil at the end.
func (r *streamReader) next(ctx context.Context) (jetstream.Msg, uint64, error) {
	return r.nextBefore(ctx, nil)
}

// errNothingYet is returned by nextBefore.
var errNothingYet = errors.New("nothing has come yet")

// nextBefore is next, but for the error errNothingYet when late is ready before a message is there.
func (r *streamReader) nextBefore(ctx context.Context, late <-chan time.Time) (jetstream.Msg, uint64, error) {
	for !r.done {
		m, err := r.receive(ctx, late)
		if err != nil {
			return nil, 0, err
		}
		if m == nil {
			continue
		}
		md, err := m.Metadata()
		if err != nil {
			return nil, 0, err
		}
		if md.Sequence.Consumer != r.order+1 { // a delivery got lost
			if err := r.again(ctx, nil); err != nil {
				return nil, 0, err
			}
			continue
		}
		r.order, r.left, r.tried = md.Sequence.Consumer, md.NumPending, 0
		if md.Sequence.Stream > r.until {
			r.left, r.done = r.left+1, true
			break
		}
		r.at = md.Sequence.Stream
		if r.done = r.at == r.until; r.left == 0 && !r.done {
			err = r.ask(ctx)
		}
		return m, r.at, err
	}
	return nil, 0, nil
}

// receive returns what comes next; nil when it is to be called again.
func (r *streamReader) receive(ctx context.Context, late <-chan time.Time) (m jetstream.Msg, err error) {
	if r.batch == nil {
		r.asked = r.order
		if r.batch, err = r.fetch(r.consumer); err != nil {
			return nil, r.again(ctx, err)
		}
	}
	select {
	case m, ok := <-r.batch.Messages():
		if ok {
			return m, nil
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-late:
		return nil, errNothingYet
	}
	why := r.batch.Error()
	r.batch = nil
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case why != nil && !errors.Is(why, jetstream.ErrBatchCompleted):
		return nil, r.again(ctx, why)
	case r.order == r.asked: // it has brought nothing
		return nil, r.ask(ctx)
	}
	return nil, nil //nolint:nilnil // that request is over
}

// again makes a new consumer in place of one that is gone or has no leader. why is nil where it only lost a delivery.
func (r *streamReader) again(ctx context.Context, why error) error {
	if r.tried++; r.tried > readRetries {
		return fmt.Errorf("read %s: %w", r.what(), cmp.Or(why, errDeliveryLost))
	}
	if why != nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	if err := r.begin(ctx); err != nil {
		r.batch = nil
		return r.again(ctx, err)
	}
	return nil
}

var errDeliveryLost = errors.New("deliveries get lost")

// ask finds out from the stream's leader whether there is anything left to read. The count that comes with each message is
// an estimate, and a verdict must not stand on it.
func (r *streamReader) ask(ctx context.Context) error {
	if r.follow {
		return nil
	}
	for _, filter := range r.filters {
		next, err := nextSequence(ctx, r.js.Conn(), r.stream, filter, r.at+1)
		if err != nil || next != 0 && next <= r.until {
			return err
		}
	}
	r.done = true
	return nil
}

// nextSequence returns the sequence of the first message at or after from that matches the filter; 0: there is none.
func nextSequence(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) (uint64, error) {
	m, err := nextMessage(ctx, nc, stream, filter, from)
	if err != nil || m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// nextMessage returns the first message at or after from that matches the filter; nil: there is none.
func nextMessage(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) (*jetstream.RawStreamMsg, error) {
	return getMessage(ctx, nc, stream, messageQuery{Seq: from, NextFor: filter})
}

// lastMessage returns the last message on a subject; nil: there is none.
func lastMessage(ctx context.Context, nc *nats.Conn, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return getMessage(ctx, nc, stream, messageQuery{LastFor: subject})
}

// messageQuery names one message of a stream: the one at Seq, the first at or after it on NextFor, or the last on LastFor.
type messageQuery struct {
	Seq     uint64 `json:"seq,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
}

// getMessage asks the stream's leader for a message; nil: it is not there. A direct get, which the library prefers, is
// answered by any replica, and that may lag.
func getMessage(ctx context.Context, nc *nats.Conn, stream string, query messageQuery) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	body, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	reply, err := nc.RequestWithContext(ctx, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Header  []byte `json:"hdrs"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, err)
	}
	switch m := &answer.Message; {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil //nolint:nilnil // there is none
	case answer.Error != nil:
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, answer.Error)
	default:
		raw := &jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Seq, Data: m.Data}
		if len(m.Header) > 0 {
			if raw.Header, err = nats.DecodeHeadersMsg(m.Header); err != nil {
				return nil, fmt.Errorf("message %d of stream %s: %w", m.Seq, stream, err)
			}
		}
		return raw, nil
	}
}
