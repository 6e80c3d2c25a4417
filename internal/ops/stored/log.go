package stored

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ReadClaims returns the claims of a partition up to a sequence of the result stream. A
// message that is no claim is a [config.Error].
func ReadClaims(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, until uint64) (claims []Claim, err error) {
	o := ReadOptions{
		Stream: cfg.Result.Stream, Filters: []string{LogSubject(cfg, partition, "claim")}, Until: until,
	}
	err = Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		var c streams.Claim
		if err := json.Unmarshal(m.Data, &c); err != nil {
			return config.Invalid(fmt.Errorf("message %d of stream %s is no claim: %w", m.Sequence, cfg.Result.Stream, err))
		}
		claims = append(claims, Claim{
			At: m.Sequence, Stored: m.Time, Owner: c.Owner, Mark: c.HighWaterMark, Version: c.Version, Input: c.InputStream, Created: c.InputCreated,
			Order: c.Order, Key: c.Key, Progress: ProgressOf(m.Header), Header: m.Header, Body: m.Data,
		})
		return nil
	})
	return claims, err
}

// LogSubject returns a subject of a partition's log in the result stream. what is rows,
// claim, or > for both.
func LogSubject(cfg *config.Config, partition int, what string) string {
	return cfg.Result.Subject + "." + cfg.Name + "." + strconv.Itoa(partition) + "." + what
}

// ErasedSubject returns the subject of the tombstone of an erased row in the result
// stream, which is beside the log. Either token may be *.
func ErasedSubject(cfg *config.Config, partition, row string) string {
	return cfg.Result.Subject + "." + cfg.Name + ".erased." + partition + "." + row
}

// NextResultFunc returns a function that returns the next result of a partition from its
// reader, and nil at the end.
func NextResultFunc(ctx context.Context, r *Reader) func() (*ResultRow, error) {
	return func() (*ResultRow, error) {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return nil, err
		}
		h := m.Header
		row := &ResultRow{
			At: m.Sequence, Stored: m.Time, Owner: h.Get(streams.HeaderOwner), Status: h.Get(streams.HeaderStatus),
			StateID: h.Get(streams.HeaderStateID), Source: h.Get(streams.HeaderSourceStream),
			Replaces: h.Get(streams.HeaderReplaces), Subject: h.Get(streams.HeaderSourceSubject), Header: h, Body: m.Data,
			Object: objectOf(h),
		}
		if len(h[streams.HeaderLow]) > 0 {
			row.Progress = ProgressOf(h)
		}
		if key := h[streams.HeaderKey]; len(key) > 0 {
			row.Key = &key[0]
		}
		// It is 0 if the result names no row.
		row.Seq, _ = strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
		return row, nil
	}
}

// NextInputFunc returns a function that returns the next row of the input. At the end the
// sequence of the row is 0. A work queue allows no second consumer, and an interest stream
// would keep rows for it. For both r is nil, and each row is read by itself. Such a stream
// only has rows that are not acked yet.
func NextInputFunc(ctx context.Context, nc *nats.Conn, r *Reader, stream, filter string) func() (InputRow, error) {
	if r != nil {
		return func() (InputRow, error) {
			m, err := r.Next(ctx)
			if err != nil || m == nil {
				return InputRow{}, err
			}
			return inputRow(m), nil
		}
	}
	last := uint64(0)
	return func() (InputRow, error) {
		m, err := streams.NextMessage(ctx, nc, stream, filter, last+1)
		if err != nil || m == nil {
			last = 0
			return InputRow{}, err
		}
		last = m.Sequence
		return inputRow(m), nil
	}
}

func inputRow(m *jetstream.RawStreamMsg) InputRow {
	return InputRow{Seq: m.Sequence, Subject: m.Subject, Header: m.Header, Body: m.Data}
}
