// Package stored reads back what a stage has stored: results, claims and audit events, in
// stream order. A [Reader] reads any stream (reader.go). Above it, results.go and log.go
// read the logs of partitions, audit.go the events, and object.go what is too large for a
// message. partitions.go and streams.go say what there is to read.
package stored

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Reader reads messages of a stream in order, and continues where a consumer that is
// gone, or has lost a delivery, has stopped. What it has fetched and not yet returned is
// bounded in messages and in bytes.
//
// It is not safe for concurrent use. The caller must close it.
type Reader struct {
	// Left is the number of messages that were behind the last one returned, also beyond
	// Until. It is an estimate.
	Left uint64

	js      jetstream.JetStream
	options ReadOptions // Until is never 0
	reading *streams.Reading
	at      uint64 // stream sequence of the last message, or of where to begin
	begun   bool   // a consumer was made: from then on at says where the next begins
	done    bool   // there is nothing left to read
	retries int    // in a row; 0 after each message
}

// ReadOptions select what a [Reader] reads.
type ReadOptions struct {
	Stream  string
	Filters []string // at least one subject, with wildcards
	// From is the sequence to begin at. 0 stands for the first. It is ignored with Since,
	// NewOnly or LastPerSubject.
	From uint64
	// Since is when to begin. If it is zero, From decides.
	Since time.Time
	// NewOnly begins with the messages that are stored from now on.
	NewOnly bool
	// LastPerSubject begins with the last message of each subject, and omits those before.
	LastPerSubject bool
	// Until is the last sequence to read. 0 stands for the last message that there is when
	// the reader gets there.
	Until uint64
	// Follow waits for more messages after the last one, until the context ends.
	Follow bool
	// HeadersOnly omits the bodies. It is for messages that a stage has written, never for
	// the input: nats-server up to 2.15.3 panics when it has to leave out the body of a
	// message whose header block has a single byte, and everyone who may publish rows may
	// store such a message.
	HeadersOnly bool
	// Brief makes the server forget a reader soon if it was not closed. It is for a caller
	// that reads at once, and perhaps often.
	Brief bool
}

const (
	// readTimeout bounds a request for a consumer. A leader election takes about four
	// seconds.
	readTimeout = 10 * time.Second
	// readRetries is how often in a row reading may fail, a second apart.
	readRetries = 20
	// forgetAfter is when the server removes the consumer of a reader that asks for
	// nothing, because its process was killed, its user may not delete consumers, or its
	// caller takes long. With Brief it is briefly. A caller that takes longer gets another
	// consumer. Until it is removed the consumer counts in the account's limit, which the
	// next command may meet.
	forgetAfter = 30 * time.Second
	briefly     = 15 * time.Second
)

// OpenReader begins to read one filter up to a sequence. The caller must close the reader.
func OpenReader(ctx context.Context, js jetstream.JetStream, stream, filter string, until uint64, headersOnly bool) (*Reader, error) {
	return Open(ctx, js, ReadOptions{Stream: stream, Filters: []string{filter}, Until: until, HeadersOnly: headersOnly})
}

// Open begins to read. The caller must close the reader.
func Open(ctx context.Context, js jetstream.JetStream, o ReadOptions) (*Reader, error) {
	if o.Until == 0 {
		o.Until = math.MaxUint64
	}
	r := &Reader{js: js, options: o, at: max(1, o.From) - 1}
	err := r.begin(ctx)
	if err == nil && r.Left == 0 {
		err = r.ask(ctx)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Each calls f with each message that o selects, in the order of the stream. An error of f
// ends the reading and is returned.
func Each(ctx context.Context, js jetstream.JetStream, o ReadOptions, f func(*jetstream.RawStreamMsg) error) error {
	r, err := Open(ctx, js, o)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Each(ctx, f)
}

// Close ends the reading, see [streams.Reading.Close].
func (r *Reader) Close() {
	if r.reading != nil {
		r.reading.Close()
	}
}

// begin makes a consumer that continues after the last message.
func (r *Reader) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	cfg := jetstream.ConsumerConfig{HeadersOnly: r.options.HeadersOnly, InactiveThreshold: forgetAfter}
	if r.options.Brief {
		cfg.InactiveThreshold = briefly
	}
	if len(r.options.Filters) == 1 {
		cfg.FilterSubject = r.options.Filters[0]
	} else {
		cfg.FilterSubjects = r.options.Filters
	}
	switch {
	case !r.begun && r.options.NewOnly:
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	case !r.begun && r.options.LastPerSubject:
		cfg.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
	case !r.begun && !r.options.Since.IsZero() && len(r.options.Filters) > 1:
		from, err := r.firstSince(ctx, cfg)
		if err != nil {
			return fmt.Errorf("read %s: %w", r.what(), err)
		}
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	case !r.begun && !r.options.Since.IsZero():
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &r.options.Since
	default:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, r.at+1
	}
	r.Close() // the limit of consumers may have no room for both
	reading, err := streams.Read(ctx, r.js, r.options.Stream, cfg)
	if err != nil {
		return fmt.Errorf("read %s: %w", r.what(), err)
	}
	r.reading, r.Left = reading, reading.Left
	if !r.begun {
		// Another consumer would have to begin there.
		r.begun, r.at = true, max(r.at, reading.Before)
	}
	return nil
}

// firstSince returns where to begin by time with several filters. A consumer that has both
// skips messages: nats-server up to 2.15.3 moves its start to the first message of a filter
// that has no message before that time, whatever the others have. For example, with rows at
// 1, 12 and 20, calls at 16 and a time between 2 and 12, it begins at 16. So each filter is
// asked for by itself, by a consumer that is never read from.
func (r *Reader) firstSince(ctx context.Context, cfg jetstream.ConsumerConfig) (from uint64, err error) {
	cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &r.options.Since
	cfg.FilterSubjects, cfg.InactiveThreshold = nil, readTimeout
	from = math.MaxUint64
	for _, filter := range r.options.Filters {
		cfg.FilterSubject = filter
		first, err := streams.Read(ctx, r.js, r.options.Stream, cfg)
		if err != nil {
			return 0, err
		}
		first.Close()
		from = min(from, first.Before+1)
	}
	return from, nil
}

// what describes what the reader reads, for errors.
func (r *Reader) what() string {
	return strings.Join(r.options.Filters, ", ") + " of stream " + r.options.Stream
}

// Next returns the next message, or nil at the end. It blocks until there is one.
func (r *Reader) Next(ctx context.Context) (*jetstream.RawStreamMsg, error) {
	return r.NextBefore(ctx, nil)
}

// Each calls f with each message that is left. An error of f ends the reading and is
// returned.
func (r *Reader) Each(ctx context.Context, f func(*jetstream.RawStreamMsg) error) error {
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return err
		}
		if err := f(m); err != nil {
			return err
		}
	}
}

// ErrNoMore means that there is no further message, or none at the moment.
var ErrNoMore = streams.ErrNoMore

// NextBefore is Next, but returns [ErrNoMore] when late is ready before there is a message.
func (r *Reader) NextBefore(ctx context.Context, late <-chan time.Time) (*jetstream.RawStreamMsg, error) {
	for !r.done {
		m, err := r.reading.Next(ctx, late)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, ErrNoMore):
			return nil, err
		case err != nil:
			err = r.again(ctx, err)
		case m == nil:
			err = r.ask(ctx)
		default:
			return r.take(ctx, m)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // the end is no error
}

// take returns a message that is not beyond the end.
func (r *Reader) take(ctx context.Context, m *jetstream.RawStreamMsg) (*jetstream.RawStreamMsg, error) {
	r.Left, r.retries = r.reading.Left, 0
	if m.Sequence > r.options.Until {
		r.Left, r.done = r.Left+1, true
		return nil, nil //nolint:nilnil // the end is no error
	}
	r.at = m.Sequence
	if r.done = r.at == r.options.Until; r.Left == 0 && !r.done {
		if err := r.ask(ctx); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// LastMessage is [streams.LastMessage] for readers, which are patient: a server that gives
// no answer is asked again, as often as a Reader would. It may be busy, or elect a leader.
func LastMessage(
	ctx context.Context, nc *nats.Conn, stream, filter string,
) (m *jetstream.RawStreamMsg, err error) {
	for range readRetries {
		m, err = streams.LastMessage(ctx, nc, stream, filter)
		if !streams.Unanswered(err) || errors.Is(err, nats.ErrPermissionViolation) || ctx.Err() != nil {
			break
		}
	}
	return m, err
}

// again replaces a consumer that is gone, has no leader, or has lost a delivery.
func (r *Reader) again(ctx context.Context, why error) error {
	if r.retries++; r.retries > readRetries {
		return fmt.Errorf("read %s: %w", r.what(), why)
	}
	if !errors.Is(why, streams.ErrDeliveryLost) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	if err := r.begin(ctx); err != nil {
		// A stream created in its place would have other messages.
		if r.options.Follow && errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		return r.again(ctx, err)
	}
	return nil
}

// ask finds out from the stream's leader whether there is anything left to read. The
// count that comes with each message is an estimate, and a verdict must not rely on it.
func (r *Reader) ask(ctx context.Context) error {
	if r.options.Follow {
		return nil
	}
	for _, filter := range r.options.Filters {
		next, err := streams.NextSequence(ctx, r.js.Conn(), r.options.Stream, filter, r.at+1)
		if err != nil || next != 0 && next <= r.options.Until {
			return err
		}
	}
	r.done = true
	return nil
}
