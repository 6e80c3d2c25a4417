// Package erased reads the tombstones that `stage erase` has left of rows.
//
//	t, err := erased.Of(ctx, js, cfg, 7) // t is nil if row 7 was not erased
package erased

import (
	"context"
	"fmt"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// Each calls f with the tombstones of the erased rows of a partition, in the order in
// which they were stored. It returns the first error of f. A message there that is no
// tombstone is an error.
func Each(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, f func(*proof.Tombstone) error) error {
	o := stored.ReadOptions{Stream: cfg.Result.Stream, Filters: []string{stored.ErasedSubject(cfg, strconv.Itoa(partition), "*")}}
	return stored.Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		t, err := proof.ParseTombstone(m.Data)
		if err != nil {
			return fmt.Errorf("message %d of stream %s on %s: %w", m.Sequence, cfg.Result.Stream, m.Subject, err)
		}
		return f(t)
	})
}

// Of returns the newest tombstone of a row, whichever partition it is of, or nil.
func Of(ctx context.Context, js jetstream.JetStream, cfg *config.Config, row uint64) (*proof.Tombstone, error) {
	m, err := streams.LastMessage(ctx, js.Conn(), cfg.Result.Stream, stored.ErasedSubject(cfg, "*", strconv.FormatUint(row, 10)))
	if err != nil || m == nil {
		return nil, err
	}
	return proof.ParseTombstone(m.Data)
}

// Count returns how many results of a stage were erased.
func Count(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (n int, err error) {
	o := stored.ReadOptions{Stream: cfg.Result.Stream, Filters: []string{stored.ErasedSubject(cfg, "*", "*")}, HeadersOnly: true}
	err = stored.Each(ctx, js, o, func(*jetstream.RawStreamMsg) error {
		n++
		return nil
	})
	return n, err
}
