package verify

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// store is the streams of the stage under check, as the server has them. The caller closes
// it, and with it all its readers.
type store struct {
	js      jetstream.JetStream
	cfg     *config.Config
	readers []*stored.Reader // to close at the end
}

// reader opens a reader that is closed at the end.
func (s *store) reader(ctx context.Context, o stored.ReadOptions) (*stored.Reader, error) {
	r, err := stored.Open(ctx, s.js, o)
	if err == nil {
		s.readers = append(s.readers, r)
	}
	return r, err
}

// close closes the readers.
func (s *store) close() {
	for _, r := range s.readers {
		r.Close()
	}
}

// streamInfo returns nil for a stream that does not exist.
func (s *store) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	stream, err := s.js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, nil //nolint:nilnil // that it is missing is an answer
	case err != nil:
		return nil, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return stream.CachedInfo(), nil
}

// row reads one row of the input. It returns nil if the row is gone.
func (s *store) row(ctx context.Context, seq uint64) (*stored.InputRow, error) {
	m, err := streams.MessageAt(ctx, s.js.Conn(), s.cfg.Input.Stream, seq)
	if err != nil {
		return nil, fmt.Errorf("read row %d of stream %s: %w", seq, s.cfg.Input.Stream, err)
	}
	if m == nil {
		return nil, nil //nolint:nilnil // that it is gone is an answer
	}
	in := &stored.InputRow{Seq: m.Sequence, Subject: m.Subject, Header: m.Header, Body: m.Data}
	return in, in.Fetch(ctx, s.js.Conn())
}

// deletionsOf returns the deletions of a stream, for which the server is asked later. inside
// is how many there are.
func (s *store) deletionsOf(ctx context.Context, stream string, inside int) *deletions {
	if inside == 0 {
		return nil
	}
	return &deletions{ask: func() ([]uint64, error) {
		of, err := s.js.Stream(ctx, stream)
		if err != nil {
			return nil, fmt.Errorf("look at stream %s: %w", stream, err)
		}
		info, err := of.Info(ctx, jetstream.WithDeletedDetails(true))
		if err != nil {
			return nil, fmt.Errorf("look at stream %s: %w", stream, err)
		}
		return info.State.Deleted, nil
	}}
}

// countUpTo counts the messages of the results stream on a subject, up to a place.
func (s *store) countUpTo(ctx context.Context, subject string, until uint64) (n uint64, err error) {
	first, err := streams.NextSequence(ctx, s.js.Conn(), s.cfg.Result.Stream, subject, 1)
	if err != nil || first == 0 || first > until {
		return 0, err
	}
	o := stored.ReadOptions{Stream: s.cfg.Result.Stream, Filters: []string{subject}, Until: until, HeadersOnly: true}
	err = stored.Each(ctx, s.js, o, func(*jetstream.RawStreamMsg) error {
		n++
		return nil
	})
	return n, err
}

// firsts says where the logs and the records of dropped results begin. [RunWith] compares
// it before and after a check. If it has changed, an owner has dropped results meanwhile:
// records that were read before the drop do not fit a log that was read after it.
func (s *store) firsts(ctx context.Context) (text string, err error) {
	subjects := []string{streams.DroppedSubject(s.cfg.Result.Subject, s.cfg.Name, "*")}
	for p := range s.cfg.Streams.Partitions {
		subjects = append(subjects, stored.LogSubject(s.cfg, p, "rows"), stored.LogSubject(s.cfg, p, ">"))
	}
	for _, subject := range subjects {
		at, err := streams.NextSequence(ctx, s.js.Conn(), s.cfg.Result.Stream, subject, 1)
		if err != nil {
			return "", fmt.Errorf("look where the results begin: %w", err)
		}
		text += strconv.FormatUint(at, 10) + " "
	}
	return text, nil
}
