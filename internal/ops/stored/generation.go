package stored

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Generation tells streams of the same name apart. A stream that was deleted and created
// again counts its messages from 1, so a reader of the first one has to begin again.
//
// The zero value takes a stream for another one once there was none of its name for a
// moment. It is not safe for concurrent use.
type Generation struct {
	// Ask makes Look ask for the stream before each reading. It is for a store whose
	// server may have been replaced between two readings: while a server stops it denies
	// having the streams that it has, so that a missing stream proves nothing. Users of
	// NATS need a permission for this that reading does not take.
	Ask bool
	// Restart makes the reader begin with the first message. It is required.
	Restart func()

	created time.Time // when the stream of the last reading was created, with Ask
}

// Look calls Restart if the stream is another one than at the last call. It does nothing
// without Ask. A stream that does not exist is [jetstream.ErrStreamNotFound].
func (g *Generation) Look(ctx context.Context, js jetstream.JetStream, stream string) error {
	if !g.Ask {
		return nil
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	if now := s.CachedInfo().Created; !g.created.Equal(now) {
		g.Restart()
		g.created = now
	}
	return nil
}

// streamPoll is the time between two looks for a stream that does not exist.
const streamPoll = time.Second

// Follow calls read until ctx ends, whose cause it returns, or until read fails. While the
// error of read is [jetstream.ErrStreamNotFound] it waits, and it calls waiting once when
// it begins to.
func (g *Generation) Follow(ctx context.Context, read func() error, waiting func()) error {
	for waits := false; ; {
		err := read()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		}
		if !g.Ask { // with Ask, Look finds out
			g.Restart()
		}
		if !waits {
			waits = true
			waiting()
		}
		select {
		case <-ctx.Done():
		case <-time.After(streamPoll):
		}
	}
}
