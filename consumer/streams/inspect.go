package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// InspectEvery is the time between two looks at the streams of a stage that works.
	InspectEvery = time.Minute
	// inspectFresh is how long a look counts for others that ask: all partitions of a process may be claimed at once.
	inspectFresh = time.Second
)

// Inspector looks at the settings of a stage's streams while the stage works. What [Ensure] checks at the start may be
// changed at any time: a results stream that was set to discard old messages loses results without a word. It remembers
// where each stream begins, too, and reports what is gone from the front of one that keeps the log.
//
// Safe for concurrent use; a nil Inspector finds nothing.
type Inspector struct {
	conn func() *nats.Conn
	cfg  Config
	log  *slog.Logger

	verdict atomic.Pointer[error] // of the last look; nil: there was none

	mu     sync.Mutex        // held while a look is under way, so that others wait for it
	looked time.Time         // when the last look ended
	first  map[string]uint64 // sequence that a stream began with, by name
}

// NewInspector returns an Inspector of the streams of s, over the connection that conn returns.
func NewInspector(conn func() *nats.Conn, s Config, log *slog.Logger) *Inspector {
	return &Inspector{conn: conn, cfg: s, log: log, first: make(map[string]uint64)}
}

// Run looks at the streams once in each [InspectEvery] until ctx ends. The first look is after delay, by which the looks
// of many processes are spread.
func (i *Inspector) Run(ctx context.Context, delay time.Duration) {
	for wait := delay; ; wait = InspectEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		_ = i.Look(ctx) // the terms read the verdict
	}
}

// Verdict returns what the last look has found that keeps the stage from working; nil: nothing. It does not block.
func (i *Inspector) Verdict() error {
	if i == nil {
		return nil
	}
	if err := i.verdict.Load(); err != nil {
		return *err
	}
	return nil
}

// Look asks the server for the streams, unless somebody has done so within the last second, and returns an [*UnfitError]
// with all settings that would break a guarantee, and how to change them; nil: there is none. What can't be looked at is
// left as it was found before: whoever needs that stream reports it.
func (i *Inspector) Look(ctx context.Context) error {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.looked.IsZero() && time.Since(i.looked) < inspectFresh {
		return i.Verdict()
	}
	js, err := JetStream(i.conn())
	if err != nil {
		return err
	}
	var wrong []error
	for _, part := range i.cfg.parts(i.conn()) {
		stream, err := Look(ctx, js, part.want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return i.Verdict()
		}
		info := stream.CachedInfo()
		if part.field == FieldResultStream || part.field == FieldLaneStream {
			i.compare(info)
		}
		if found := part.check(info.Config); len(found) > 0 {
			wrong = append(wrong, NewSettingError(part.field, "%s: stream %s was changed: %w", part.field, part.want.Name, found))
		}
	}
	var verdict error
	if len(wrong) > 0 {
		verdict = &UnfitError{Err: errors.Join(wrong...)}
	}
	i.verdict.Store(&verdict)
	i.looked = time.Now()
	return verdict
}

// compare reports messages that are gone from the front of a stream since the last look.
func (i *Inspector) compare(info *jetstream.StreamInfo) {
	name, now := info.Config.Name, info.State.FirstSeq
	before, known := i.first[name]
	i.first[name] = now
	if known && now > before && before > 0 {
		i.log.Warn("messages are gone from the front of a stream: it was purged, or its settings remove old messages",
			slog.String("stream", name), slog.Uint64("began_at", before), slog.Uint64("begins_at", now),
			slog.String("do", fmt.Sprintf("stage verify shows what is missing; nats stream info %s shows the limits", name)))
	}
}
