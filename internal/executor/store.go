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

// DedupeStream is the stream of the replies that STAGE_DEDUPE=stored keeps. All stages of
// a server share it.
const DedupeStream = "DEDUPE"

const (
	// dedupeTimeout bounds one look-up, and the acknowledgement of one stored reply.
	dedupeTimeout = 2 * time.Second
	// dedupeCooldown is how long there are no look-ups after the store failed, so that a
	// broken one does not delay every row.
	dedupeCooldown = 5 * time.Second
	// dedupeBytesMax bounds the stream; full, it drops the oldest replies.
	dedupeBytesMax = 1 << 30
	// dedupePendingMax bounds the replies that wait for their acknowledgement.
	dedupePendingMax = 256
)

// replyStore keeps replies in a stream, one for each request, by the hash of the request
// and its target. Stages that share a server share it. It saves money and nothing depends
// on it: when it fails, calls are made. It is safe for concurrent use. [replyStore.Use] and
// [replyStore.Flush] do nothing with a nil store.
type replyStore struct {
	stream jetstream.Stream // as it was when the store was opened
	ttl    time.Duration
	log    *slog.Logger

	mu       sync.Mutex
	js       jetstream.JetStream
	cooldown time.Time // no look-up is made before
}

// openReplyStore finds the stream, or creates it if the configuration allows that.
func openReplyStore(ctx context.Context, nc *nats.Conn, cfg *config.Config, log *slog.Logger) (*replyStore, error) {
	s := &replyStore{ttl: cfg.Rows.DedupeTTL, log: log}
	var err error
	if s.js, err = s.newClient(nc); err != nil {
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
		return nil, fmt.Errorf("STAGE_DEDUPE: stream %s does not acknowledge messages on %s>: change it, or delete it and the stage creates it again", DedupeStream, config.DedupePrefix)
	}
	return s, nil
}

// newClient returns a client that publishes replies without waiting.
func (s *replyStore) newClient(nc *nats.Conn) (jetstream.JetStream, error) {
	return streams.JetStream(nc, jetstream.WithPublishAsyncMaxPending(dedupePendingMax), jetstream.WithPublishAsyncTimeout(dedupeTimeout),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { s.failed("store a reply", err) }))
}

// Use makes the store use another connection, since the present one is closed for good.
func (s *replyStore) Use(nc *nats.Conn) {
	if s == nil {
		return
	}
	js, err := s.newClient(nc)
	if err != nil {
		s.failed("connect to the store", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.js = js
}

// client returns the present client.
func (s *replyStore) client() jetstream.JetStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.js
}

// dedupeConfig is the configuration that the stream is created with.
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
	coolingDown := time.Now().Before(s.cooldown)
	s.mu.Unlock()
	if coolingDown {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dedupeTimeout)
	defer cancel()
	m, err := s.last(ctx, config.DedupePrefix+key)
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		s.failed("look up a reply", err)
		return nil
	case m == nil:
		return nil
	case time.Since(m.Time) >= s.ttl: // the stream may keep them for longer
		return nil
	}
	var a answer
	if err := json.Unmarshal(m.Data, &a); err != nil || a.Text == "" && !a.callsTools() {
		s.log.Warn("invalid stored reply ignored", slog.String("subject", m.Subject), slog.Any("error", err))
		return nil
	}
	return &a
}

// last returns the last message stored on a subject, or nil if there is none.
func (s *replyStore) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	nc := s.client().Conn()
	if s.stream.CachedInfo().Config.AllowDirect {
		return streams.DirectLast(ctx, nc, DedupeStream, subject)
	}
	return streams.LastMessage(ctx, nc, DedupeStream, subject)
}

// put stores a reply and does not wait until it is stored. It names the row whose call has
// brought it, so that an erasure of that row finds it.
func (s *replyStore) put(key, stateID string, a *answer) {
	body, err := json.Marshal(a)
	if len(body) > int(s.client().Conn().MaxPayload()) {
		return // the reply fits in no message, which is no failure of the store
	}
	if err == nil {
		_, err = s.client().PublishMsgAsync(&nats.Msg{
			Subject: config.DedupePrefix + key, Data: body, Header: nats.Header{streams.HeaderStateID: {stateID}},
		})
	}
	if err != nil {
		s.failed("store a reply", err)
	}
}

// failed begins a cooldown of look-ups, and logs the first failure of each.
func (s *replyStore) failed(what string, err error) {
	s.mu.Lock()
	now := time.Now()
	first := !now.Before(s.cooldown)
	s.cooldown = now.Add(dedupeCooldown)
	s.mu.Unlock()
	if first {
		s.log.Warn("stored replies are unavailable, calls are made", slog.String("what", what), slog.Any("error", err))
	}
}

// Flush waits until all replies are stored, at most until ctx ends.
func (s *replyStore) Flush(ctx context.Context) {
	if s == nil {
		return
	}
	js := s.client()
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		s.log.Warn("some replies were not stored for later runs", slog.Int("replies", js.PublishAsyncPending()))
	}
}
