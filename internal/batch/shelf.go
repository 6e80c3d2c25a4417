package batch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// part is what a message of the stream says about a deferred batch. It is the last token
// of the subject batches.<name>.<id>.<part>, but that of a result has the number of the
// prompt behind it. Each subject holds one message.
type part string

const (
	// partRequest is the request. It is stored once, and the batch exists from then on.
	partRequest part = "request"
	// partClaim says who works on the batch. Its sequence is the condition of all that a
	// term stores.
	partClaim part = "claim"
	// partBeat says that the term goes on, and how far it has come.
	partBeat part = "beat"
	// partReply holds the result of one prompt.
	partReply part = "reply"
	// partEnd is stored once, by whoever is first: the term that has the last result, or
	// the replica that cancels the batch or finds it too old.
	partEnd part = "end"
)

// Headers of the messages.
const (
	// Of a request: how long answers are kept, such as 24h0m0s.
	headerKeep    = "Stage-Batch-Keep"
	headerPrompts = "Stage-Batch-Prompts" // of a request: how many there are
	headerHash    = "Stage-Batch-Hash"    // of a request: its SHA-256
	headerDone    = "Stage-Batch-Done"    // of a beat: how many prompts have their result
	headerProblem = "Stage-Batch-Problem" // of a beat: why prompts wait
	headerState   = "Stage-Batch-State"   // of an end: done or cancelled
)

// shelf reads and writes the stream of deferred batches. It holds no state.
type shelf struct {
	conn   func() *nats.Conn
	stream string
	prefix string // of all subjects of the stage, with the dot
}

func newShelf(conn func() *nats.Conn, stream, name string) *shelf {
	return &shelf{conn: conn, stream: stream, prefix: streams.BatchPrefix(name)}
}

func (s *shelf) subject(id string, p part) string { return s.prefix + id + "." + string(p) }

// parse returns what a subject is about. ok is false for one that this version does not
// know.
func (s *shelf) parse(subject string) (id string, p part, ok bool) {
	rest, ok := strings.CutPrefix(subject, s.prefix)
	if !ok {
		return "", "", false
	}
	id, last, ok := strings.Cut(rest, ".")
	return id, part(last), ok
}

// storedResult is a result in the stream: that of the reply, and the tokens of all
// attempts at its prompt.
type storedResult struct {
	llm.BatchResult

	Tokens *llm.BatchTokens `json:"tokens,omitempty"`
}

// append stores a message where the last sequence on the subject condition is last.
func (s *shelf) append(
	ctx context.Context, subject string, header nats.Header, body []byte, condition string,
	last uint64,
) (uint64, error) {
	if header == nil {
		header = nats.Header{}
	}
	header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(last, 10)}
	if condition != subject {
		header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{condition}
	}
	return streams.Append(ctx, s.conn(), []*nats.Msg{
		{Subject: subject, Header: header, Data: body},
	})
}

// last returns the message of a part, or nil.
func (s *shelf) last(ctx context.Context, id string, p part) (*jetstream.RawStreamMsg, error) {
	return streams.LastMessage(ctx, s.conn(), s.stream, s.subject(id, p))
}

// end ends a batch, unless it has ended.
func (s *shelf) end(ctx context.Context, id string, state State, why string) error {
	subject := s.subject(id, partEnd)
	_, err := s.append(ctx, subject, nats.Header{headerState: {string(state)}}, []byte(why),
		subject, 0)
	if err == nil {
		return nil
	}
	if end, readErr := s.last(ctx, id, partEnd); readErr == nil && end != nil {
		return nil // by now, or before
	}
	return err
}

// read reads what is stored of batches, all but the results, without bodies.
func (s *shelf) read(ctx context.Context) (*streams.Reading, error) {
	return s.reading(ctx, jetstream.ConsumerConfig{
		FilterSubject: s.prefix + "*.*", HeadersOnly: true,
	})
}

func (s *shelf) reading(
	ctx context.Context, cfg jetstream.ConsumerConfig,
) (*streams.Reading, error) {
	js, err := streams.JetStream(s.conn())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	cfg.InactiveThreshold = 30 * time.Second
	reading, err := streams.Read(ctx, js, s.stream, cfg)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", s.stream, streams.Denied(s.conn(), err))
	}
	return reading, nil
}

// results calls each with the stored results of a batch, in the order in which they were
// stored.
func (s *shelf) results(
	ctx context.Context, id string, each func(prompt int, r *storedResult),
) error {
	prefix := s.subject(id, partReply) + "."
	reading, err := s.reading(ctx, jetstream.ConsumerConfig{FilterSubject: prefix + "*"})
	if err != nil {
		return err
	}
	defer reading.Close()
	for m, err := range reading.All(ctx) {
		if err != nil {
			return fmt.Errorf("read the results of batch %s: %w", id, err)
		}
		prompt, numberErr := strconv.Atoi(strings.TrimPrefix(m.Subject, prefix))
		r := new(storedResult)
		if err := json.Unmarshal(m.Data, r); err != nil || numberErr != nil {
			return fmt.Errorf("message %d of stream %s is not a result", m.Sequence, s.stream)
		}
		each(prompt, r)
	}
	return nil
}

// room returns how many batches of the stage are stored, and how many bytes are in the
// stream and may be; bytesMax is 0 or less where there is no limit.
func (s *shelf) room(ctx context.Context) (batches int, bytes, bytesMax int64, err error) {
	info, err := s.info(ctx, jetstream.WithSubjectFilter(s.prefix+"*."+string(partRequest)))
	if err != nil {
		return 0, 0, 0, err
	}
	return len(info.State.Subjects), int64(info.State.Bytes), info.Config.MaxBytes, nil //nolint:gosec // far below
}

func (s *shelf) info(
	ctx context.Context, opts ...jetstream.StreamInfoOpt,
) (*jetstream.StreamInfo, error) {
	js, err := streams.JetStream(s.conn())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	stream, err := streams.Look(ctx, js, s.stream)
	if err != nil || len(opts) == 0 {
		if err != nil {
			return nil, err
		}
		return stream.CachedInfo(), nil
	}
	info, err := stream.Info(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", s.stream, streams.Denied(s.conn(), err))
	}
	return info, nil
}

// remove removes all that is stored of a batch. request is the sequence of its request,
// or 0 if it has none.
//
// Several replicas may do so, and a client may submit a batch with the same id as soon as
// the first of them has. So the others remove only what lies below a mark, and only if
// the request, which they look at after they have taken the mark, is still the old one.
func (s *shelf) remove(ctx context.Context, id string, request uint64) error {
	info, err := s.info(ctx)
	if err != nil {
		return err
	}
	m, err := s.last(ctx, id, partRequest)
	if err != nil || m != nil && m.Sequence != request {
		return err
	}
	return streams.PurgeBelow(ctx, s.conn(), s.stream, s.prefix+id+".>", info.State.LastSeq+1)
}

// hashOf identifies a request: the same one has the same hash, however it was written.
func hashOf(r *llm.BatchRequest) string {
	sum := sha256.Sum256(encodeJSON(r))
	return hex.EncodeToString(sum[:])
}
