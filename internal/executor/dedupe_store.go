package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	DedupeStream = "DEDUPE"

	dedupeTimeout = 2 * time.Second // of one look-up
	// dedupeRest is how long a store that failed is left alone, so that it does not hold up each row.
	dedupeRest = 5 * time.Second
	// dedupeBytesMax bounds the stream; full, it drops the oldest replies.
	dedupeBytesMax = 1 << 30
	dedupeOnWayMax = 256
)

// replyStore keeps replies in a stream, one a request, by the hash of the request and of whom it is asked. Stages that
// share a server share it. It saves money and nothing depends on it: when it fails, calls are made. Safe for concurrent
// use.
type replyStore struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	ttl    time.Duration
	log    *slog.Logger

	mu   sync.Mutex
	rest time.Time // no look-up before
}

// openReplyStore creates or finds the stream.
func openReplyStore(ctx context.Context, nc *nats.Conn, cfg *config.Config, log *slog.Logger) (*replyStore, error) {
	s := &replyStore{ttl: cfg.Rows.DedupeTTL, log: log}
	var err error
	s.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(dedupeOnWayMax), jetstream.WithPublishAsyncTimeout(dedupeTimeout),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { s.failed("store a reply", err) }))
	if err != nil {
		return nil, err
	}
	s.stream, err = s.js.Stream(ctx, DedupeStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !cfg.Streams.Create {
			return nil, fmt.Errorf("STAGE_DEDUPE: stream %s does not exist: create it on subjects %s>, or set STAGE_CREATE_STREAMS=true", DedupeStream, config.DedupePrefix)
		}
		s.stream, err = streams.Create(ctx, s.js, dedupeConfig(cfg))
	}
	if err != nil {
		return nil, fmt.Errorf("STAGE_DEDUPE: stream %s: %w", DedupeStream, err)
	}
	have := s.stream.CachedInfo().Config
	if !slices.Contains(have.Subjects, config.DedupePrefix+">") || have.NoAck {
		return nil, fmt.Errorf("STAGE_DEDUPE: stream %s does not acknowledge messages on %s>: change it, or delete it and it is created anew", DedupeStream, config.DedupePrefix)
	}
	return s, nil
}

func dedupeConfig(cfg *config.Config) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: DedupeStream, Subjects: []string{config.DedupePrefix + ">"}, Description: "replies that llm-stage uses again",
		Replicas: cfg.Streams.Replicas, MaxMsgsPerSubject: 1, MaxAge: cfg.Rows.DedupeTTL, MaxBytes: dedupeBytesMax,
		Discard: jetstream.DiscardOld, AllowDirect: true,
		Duplicates: min(cfg.Rows.DedupeTTL, time.Minute), // not used, but no longer than the age
	}
	if cfg.Streams.Storage == "memory" {
		c.Storage = jetstream.MemoryStorage
	}
	return c
}

// get returns the reply that is stored for the request, or nil.
func (s *replyStore) get(ctx context.Context, key string) *answer {
	s.mu.Lock()
	resting := time.Now().Before(s.rest)
	s.mu.Unlock()
	if resting {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dedupeTimeout)
	defer cancel()
	m, err := s.stream.GetLastMsgForSubject(ctx, config.DedupePrefix+key)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		s.failed("look up a reply", err)
		return nil
	case time.Since(m.Time) >= s.ttl: // the stream may keep them for longer
		return nil
	}
	var a answer
	if err := json.Unmarshal(m.Data, &a); err != nil || a.Text == "" {
		s.log.Warn("not a stored reply", slog.String("subject", m.Subject), slog.Any("error", err))
		return nil
	}
	return &a
}

// put stores a reply, sometime.
func (s *replyStore) put(key string, a *answer) {
	body, err := json.Marshal(a)
	if err == nil {
		_, err = s.js.PublishAsync(config.DedupePrefix+key, body)
	}
	if err != nil {
		s.failed("store a reply", err)
	}
}

// failed lets the store rest, and says so once in a while.
func (s *replyStore) failed(what string, err error) {
	s.mu.Lock()
	now := time.Now()
	first := !now.Before(s.rest)
	s.rest = now.Add(dedupeRest)
	s.mu.Unlock()
	if first {
		s.log.Warn("stored replies are not to be had, calls are made", slog.String("what", what), slog.Any("error", err))
	}
}

// flush waits until what was put is stored, at most until ctx ends.
func (s *replyStore) flush(ctx context.Context) {
	select {
	case <-s.js.PublishAsyncComplete():
	case <-ctx.Done():
		s.log.Warn("some replies were not stored for later runs", slog.Int("replies", s.js.PublishAsyncPending()))
	}
}
