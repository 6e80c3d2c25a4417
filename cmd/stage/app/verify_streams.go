package app

import (
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
	// verifyAhead is how many messages are read ahead, verifyAheadBytes how many bytes; the largest message must fit.
	verifyAhead      = 1000
	verifyAheadBytes = 8 << 20
	// verifySilence is how long nothing may come before the stream is asked whether anything is left.
	verifySilence = 5 * time.Second
	verifyRequest = 10 * time.Second
)

// streamReader reads the messages of one subject filter up to a sequence of the stream, in order.
type streamReader struct {
	nc             *nats.Conn
	stream, filter string
	until          uint64
	messages       jetstream.MessagesContext
	at             uint64 // of the last message
	left           uint64 // messages that were behind it, beyond the bound too
	done           bool
}

// openReader begins to read; headers only leaves the bodies out.
func openReader(ctx context.Context, js jetstream.JetStream, stream, filter string, until uint64, headersOnly bool) (*streamReader, error) {
	r := &streamReader{nc: js.Conn(), stream: stream, filter: filter, until: until}
	c, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, HeadersOnly: headersOnly})
	if err != nil {
		return nil, fmt.Errorf("read %s of stream %s: %w", filter, stream, err)
	}
	r.left = c.CachedInfo().NumPending
	bytes := max(verifyAheadBytes, 2*int(js.Conn().MaxPayload()))
	if r.messages, err = c.Messages(jetstream.PullMaxMessagesWithBytesLimit(verifyAhead, bytes)); err != nil {
		return nil, fmt.Errorf("read %s of stream %s: %w", filter, stream, err)
	}
	if r.left == 0 {
		err = r.ask(ctx)
	}
	return r, err
}

// close ends the reading. The server forgets the consumer by itself.
func (r *streamReader) close() { r.messages.Stop() }

// next returns the next message and its sequence; 0 at the end.
func (r *streamReader) next(ctx context.Context) (jetstream.Msg, uint64, error) {
	for !r.done {
		wait, cancel := context.WithTimeout(ctx, verifySilence)
		m, err := r.messages.Next(jetstream.NextContext(wait))
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, 0, context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
			if err := r.ask(ctx); err != nil {
				return nil, 0, err
			}
			continue
		case err != nil:
			return nil, 0, fmt.Errorf("read %s of stream %s: %w", r.filter, r.stream, err)
		}
		md, err := m.Metadata()
		if err != nil {
			return nil, 0, err
		}
		if md.Sequence.Stream > r.until {
			r.left, r.done = md.NumPending+1, true
			break
		}
		r.at, r.left = md.Sequence.Stream, md.NumPending
		switch {
		case r.left > 0:
		case r.at == r.until:
			r.done = true
		default:
			if err := r.ask(ctx); err != nil {
				return nil, 0, err
			}
		}
		return m, r.at, nil
	}
	return nil, 0, nil
}

// ask finds out from the stream's leader whether there is anything left to read. The count that comes with each message is
// an estimate, and a verdict must not stand on it.
func (r *streamReader) ask(ctx context.Context) error {
	next, err := nextSequence(ctx, r.nc, r.stream, r.filter, r.at+1)
	r.done = err == nil && (next == 0 || next > r.until)
	return err
}

// nextSequence returns the sequence of the first message at or after from that matches the filter; 0: there is none.
func nextSequence(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyRequest)
	defer cancel()
	body, err := json.Marshal(struct {
		Seq     uint64 `json:"seq"`
		NextFor string `json:"next_by_subj"`
	}{from, filter})
	if err != nil {
		return 0, err
	}
	reply, err := nc.RequestWithContext(ctx, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+stream, body)
	if err != nil {
		return 0, fmt.Errorf("get a message of stream %s: %w", stream, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq uint64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, fmt.Errorf("get a message of stream %s: %w", stream, err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return 0, nil
		}
		return 0, fmt.Errorf("get a message of stream %s: %w", stream, answer.Error)
	}
	return answer.Message.Seq, nil
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
