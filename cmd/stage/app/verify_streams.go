package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// verifyAhead is how many messages are asked for at once, verifyAheadBytes how many bytes; the largest must fit.
	verifyAhead      = 1000
	verifyAheadBytes = 8 << 20
	// verifyRequest bounds a request. A leader election takes about four seconds.
	verifyRequest = 10 * time.Second
	// verifyRetries is how often in a row reading may come to nothing, a second apart.
	verifyRetries = 20
)

// streamReader reads the messages of one subject filter up to a sequence of the stream, in order. What it has asked for
// and not handed out is bounded in messages and in bytes. The library's own reader that is bounded in both has no room for
// the server's status messages beside a full batch, and loses deliveries.
type streamReader struct {
	js             jetstream.JetStream
	stream, filter string
	until          uint64
	headersOnly    bool
	fetch          func(jetstream.Consumer) (jetstream.MessageBatch, error)
	stop           context.CancelFunc

	consumer jetstream.Consumer
	batch    jetstream.MessageBatch
	order    uint64 // of the last message, as the consumer counts
	asked    uint64 // what order was when the batch was asked for
	at       uint64 // of the last message, in the stream
	left     uint64 // messages that were behind it, beyond the bound too
	tried    int
	done     bool
}

// openReader begins to read; headersOnly leaves the bodies out. The caller must close it.
func openReader(ctx context.Context, js jetstream.JetStream, stream, filter string, until uint64, headersOnly bool) (*streamReader, error) {
	return openReaderFrom(ctx, js, stream, filter, 1, until, headersOnly)
}

// openReaderFrom begins to read at a sequence, which is above 0.
func openReaderFrom(ctx context.Context, js jetstream.JetStream, stream, filter string, from, until uint64, headersOnly bool) (*streamReader, error) {
	r := &streamReader{js: js, stream: stream, filter: filter, at: from - 1, until: until, headersOnly: headersOnly}
	fetching, stop := context.WithCancel(ctx)
	r.stop = stop
	bytes := max(verifyAheadBytes, 2*int(js.Conn().MaxPayload()))
	r.fetch = func(c jetstream.Consumer) (jetstream.MessageBatch, error) {
		return c.Fetch(verifyAhead, jetstream.FetchMaxBytes(bytes), jetstream.FetchContext(fetching))
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
	ctx, cancel := context.WithTimeout(ctx, verifyRequest)
	defer cancel()
	c, err := r.js.CreateConsumer(ctx, r.stream, jetstream.ConsumerConfig{
		FilterSubject: r.filter, HeadersOnly: r.headersOnly, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.at + 1,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 5 * time.Minute,
	})
	if err != nil {
		return fmt.Errorf("read %s of stream %s: %w", r.filter, r.stream, err)
	}
	r.consumer, r.batch, r.order, r.left = c, nil, 0, c.CachedInfo().NumPending
	return nil
}

// next returns the next message and its sequence; nil at the end.
func (r *streamReader) next(ctx context.Context) (jetstream.Msg, uint64, error) {
	for !r.done {
		m, err := r.receive(ctx)
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
func (r *streamReader) receive(ctx context.Context) (m jetstream.Msg, err error) {
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
	if r.tried++; r.tried > verifyRetries {
		return fmt.Errorf("read %s of stream %s: %w", r.filter, r.stream, cmp.Or(why, errDeliveryLost))
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
	next, err := nextSequence(ctx, r.js.Conn(), r.stream, r.filter, r.at+1)
	r.done = err == nil && (next == 0 || next > r.until)
	return err
}

// nextSequence returns the sequence of the first message at or after from that matches the filter; 0: there is none.
func nextSequence(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) (uint64, error) {
	m, err := nextMessage(ctx, nc, stream, filter, from)
	if err != nil || m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// nextMessage asks the stream's leader for the first message at or after from that matches the filter; nil: there is none.
// A direct get, which the library prefers, is answered by any replica, and that may lag.
func nextMessage(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyRequest)
	defer cancel()
	body, err := json.Marshal(struct {
		Seq     uint64 `json:"seq"`
		NextFor string `json:"next_by_subj"`
	}{from, filter})
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

// readClaims returns the claims of a partition up to a sequence of the results stream.
func readClaims(ctx context.Context, js jetstream.JetStream, cfg *Config, partition int, until uint64) (claims []claimEntry, err error) {
	r, err := openReader(ctx, js, cfg.Result.Stream, logSubject(cfg, partition, "claim"), until, false)
	if err != nil {
		return nil, err
	}
	defer r.close()
	for {
		m, at, err := r.next(ctx)
		if err != nil || m == nil {
			return claims, err
		}
		var c struct {
			Owner   string    `json:"owner"`
			Mark    uint64    `json:"high_water_mark"`
			Version int       `json:"version"`
			Input   string    `json:"input_stream"`
			Created time.Time `json:"input_created"`
		}
		if err := json.Unmarshal(m.Data(), &c); err != nil {
			return nil, exitWith(exitUsage, fmt.Errorf("message %d of stream %s is no claim: %w", at, cfg.Result.Stream, err))
		}
		md, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		claims = append(claims, claimEntry{at: at, stored: md.Timestamp, owner: c.Owner, mark: c.Mark, version: c.Version, input: c.Input, created: c.Created})
	}
}

// logSubject is a subject of a partition's log: rows, claim, or > for both.
func logSubject(cfg *Config, partition int, what string) string {
	return cfg.Result.Subject + "." + cfg.Name + "." + strconv.Itoa(partition) + "." + what
}

// resultsOf returns a function that reads the results of a partition.
func resultsOf(ctx context.Context, r *streamReader) func() (*resultRow, error) {
	return func() (*resultRow, error) {
		m, at, err := r.next(ctx)
		if err != nil || m == nil {
			return nil, err
		}
		h := m.Headers()
		row := &resultRow{
			at: at, owner: h.Get(consumer.HeaderOwner), status: h.Get(consumer.HeaderStatus),
			stateID: h.Get(consumer.HeaderStateID), source: h.Get(consumer.HeaderSourceStream),
		}
		row.seq, _ = strconv.ParseUint(h.Get(consumer.HeaderSourceSeq), 10, 64) // 0 says that there is none
		return row, nil
	}
}

// inputOf returns a function that reads the sequences of the input. A work queue allows no second reader, and on an
// interest stream one would count: there each row is asked for by itself. Only those that are not acked yet are left.
func inputOf(ctx context.Context, nc *nats.Conn, r *streamReader, stream, filter string) func() (uint64, error) {
	if r != nil {
		return func() (uint64, error) {
			_, at, err := r.next(ctx)
			return at, err
		}
	}
	last := uint64(0)
	return func() (uint64, error) {
		next, err := nextSequence(ctx, nc, stream, filter, last+1)
		last = next
		return next, err
	}
}
