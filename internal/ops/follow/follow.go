// Package follow reads streams as they grow: of a NATS server, or of an embedded store
// through the processes that serve it, one after the other.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/nats-io/nats.go/jetstream"
)

// These are variables because tests of processes in real time shorten them.
var (
	// poll is the time between two looks at which process serves a store.
	poll = 500 * time.Millisecond
	// endGrace is how long a server may take to stop after its first error.
	endGrace = 5 * time.Second
)

// ErrServerEnded ends the reading from an embedded server that is gone.
var ErrServerEnded = errors.New("the process that served the store has ended")

// ReadFunc reads what it has not read yet. With more it reads until ctx ends, and otherwise
// what is stored now.
type ReadFunc func(ctx context.Context, js jetstream.JetStream, more bool) error

// Run calls read until ctx ends, which is no error. It never keeps an embedded store open
// itself, since a stage or a job could not start then. Instead it calls read with the
// server of each process that serves the store. In between it opens the store once, for
// what a process has stored that came and went between two looks. waiting is called when
// no process serves the store.
func Run(ctx context.Context, cfg *config.Config, log *slog.Logger, waiting func(), read ReadFunc) (err error) {
	f := &follower{cfg: cfg, log: log, read: read}
	if len(cfg.NATS.URL) > 0 {
		err = f.connected(ctx, func(_ *natsconn.Conn, js jetstream.JetStream) error { return read(ctx, js, true) })
	} else {
		f.log = slog.New(slog.DiscardHandler) // that a connection ends with its process is expected
		err = f.store(ctx, waiting)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return err
}

type follower struct {
	cfg  *config.Config
	log  *slog.Logger
	read ReadFunc
}

// store reads an embedded store.
func (f *follower) store(ctx context.Context, waiting func()) error {
	dir := f.cfg.Data.Dir
	// When the directory was changed: as of the last look, and as of the last reading.
	var before, read time.Time
	for waits := false; ctx.Err() == nil; sleep(ctx) {
		_, running, err := natsd.Discover(dir)
		if err != nil {
			return err
		}
		now := changed(dir)
		switch {
		case running:
			waits = false
			err = f.server(ctx)
		// Something may have been stored since the last reading. No process is starting or
		// ending just now, as the directory is what it was at the last look.
		case !now.Equal(read) && now.Equal(before):
			err = f.stored(ctx)
			if read = changed(dir); errors.Is(err, natsd.ErrLocked) || errors.Is(err, errServed) {
				read, err = time.Time{}, nil
			}
		case !waits:
			waits = true
			waiting()
		}
		if err != nil {
			return err
		}
		before = now
	}
	return nil
}

// changed returns when an entry of the directory was created or removed last. A server
// creates the file with its address when it starts, and removes it when it ends. The time
// is zero if there is no directory.
func changed(dir string) time.Time {
	info, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// server reads until the process that serves the store ends, which is no error.
func (f *follower) server(ctx context.Context) error {
	ctx, stop := WhileServed(ctx, f.cfg.Data.Dir)
	defer stop()
	err := f.connected(ctx, func(conn *natsconn.Conn, js jetstream.JetStream) error {
		if conn.Server != nil { // the other process has ended just now
			return nil
		}
		return f.read(ctx, js, true)
	})
	if err != nil && Ended(ctx) {
		return nil
	}
	return err
}

// errServed says that a process has begun to serve the store.
var errServed = errors.New("another process serves the store")

// stored reads a store that no process serves. The store may not exist yet.
func (f *follower) stored(ctx context.Context) error {
	if has, err := jobs.HasStore(f.cfg.Data.Dir); !has || err != nil {
		return err
	}
	err := f.connected(ctx, func(conn *natsconn.Conn, js jetstream.JetStream) error {
		// No process served the store when this was called, and then another command or a
		// stage was faster than this process. Its server may end in the middle of the
		// reading. Only [follower.server] does not take that for an error.
		if conn.Server == nil {
			return errServed
		}
		return f.read(ctx, js, false)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

// connected calls g with a connection.
func (f *follower) connected(ctx context.Context, g func(*natsconn.Conn, jetstream.JetStream) error) error {
	conn, err := natsconn.ConnectReader(ctx, f.cfg, f.cfg.Data.Dir, false, f.log)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
	js, err := streams.JetStream(conn.NC())
	if err != nil {
		return err
	}
	return conn.Explain(g(conn, js))
}

// WhileServed returns a context that ends with [ErrServerEnded] when the process that
// serves the embedded store in dir ends. Without it a connection to that process would be
// tried again for ever, since the next process has another address. The caller must call
// stop.
func WhileServed(ctx context.Context, dir string) (served context.Context, stop func()) {
	// The address is empty if the process has ended just now. The watch finds that out
	// first.
	addr, _, _ := natsd.Discover(dir)
	served, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for served.Err() == nil {
			if now, running, err := natsd.Discover(dir); err == nil && (!running || now != addr) {
				end(ErrServerEnded)
			}
			sleep(served)
		}
	})
	return served, func() {
		end(nil)
		watch.Wait()
	}
}

// Ended reports, after an error, whether the process that served the store has ended: a
// server that stops answers with errors of all kinds before it is gone. ctx is that of
// [WhileServed].
func Ended(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-time.After(endGrace):
	}
	return errors.Is(context.Cause(ctx), ErrServerEnded)
}

// sleep waits until the next look.
func sleep(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(poll):
	}
}
