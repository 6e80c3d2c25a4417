package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jobs"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/results"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// follower prints results as they come, from a NATS server or from an embedded store. A store it reads through the
// process that serves it, again after that process was replaced. It never keeps a store open itself: a stage or a job
// could not start then.
type follower struct {
	cfg    *config.Config
	job    string // of --job
	stderr io.Writer
	log    *slog.Logger
}

// serverPoll is the time between two looks at which process serves a store.
const serverPoll = 500 * time.Millisecond

// errServerEnded ends the reading from an embedded server that is gone.
var errServerEnded = errors.New("the process that served the store has ended")

// check refuses a directory that has jobs but no store: nobody would ever serve it.
func (f *follower) check() error {
	if len(f.cfg.NATS.URL) > 0 || f.job != "" {
		return nil
	}
	list, err := jobs.List(f.cfg.Data.Dir)
	if err == nil && len(list) > 0 {
		err = requireStore(f.cfg.Data.Dir)
	}
	return err
}

// run follows until ctx ends, which is how it is meant to end.
func (f *follower) run(ctx context.Context, p *results.Printer, out *bufio.Writer) (err error) {
	if len(f.cfg.NATS.URL) > 0 {
		err = f.follow(ctx, p)
	} else {
		err = f.followStore(ctx, p, out)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return err
}

// followStore reads the store through one process after the other. What a process has stored that has come and gone
// meanwhile is read without it.
func (f *follower) followStore(ctx context.Context, p *results.Printer, out *bufio.Writer) error {
	var before, read time.Time // when the directory was changed, at the last look, and when it was read
	for waits := false; ctx.Err() == nil; sleep(ctx, serverPoll) {
		addr, running, err := natsd.Discover(f.cfg.Data.Dir)
		if err != nil {
			return err
		}
		now := changed(f.cfg.Data.Dir)
		switch {
		case running:
			waits = false
			err = f.followServer(ctx, p, addr)
		case !now.Equal(read) && now.Equal(before): // no process is about to serve it
			err = f.readStore(ctx, p)
			if read = changed(f.cfg.Data.Dir); errors.Is(err, natsd.ErrLocked) {
				read, err = time.Time{}, nil
			}
		case !waits:
			waits = true
			terminal.PrintLine(f.stderr, "waiting for a process that serves %s", f.cfg.Data.Dir)
		}
		before = now
		if err = errors.Join(err, out.Flush()); err != nil {
			return err
		}
	}
	return nil
}

// changed returns when an entry of the directory was created or removed last, as the address of a server is at its
// start and its end; zero if there is no directory.
func changed(dir string) time.Time {
	info, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// followServer follows until the process at addr serves the store no more, which is no error.
func (f *follower) followServer(ctx context.Context, p *results.Printer, addr natsd.Address) error {
	ctx, stop := whileServed(ctx, f.cfg.Data.Dir, addr)
	defer stop()
	err := f.follow(ctx, p)
	if errors.Is(context.Cause(ctx), errServerEnded) {
		return nil
	}
	return err
}

// whileServed returns a context that ends with [errServerEnded] when the process at addr serves the store in dir no more:
// a connection to it would only be tried again, since the address of the next process is another one. The caller must
// call stop.
func whileServed(ctx context.Context, dir string, addr natsd.Address) (served context.Context, stop func()) {
	served, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for served.Err() == nil {
			if now, running, err := natsd.Discover(dir); err == nil && (!running || now != addr) {
				end(errServerEnded)
			}
			sleep(served, serverPoll)
		}
	})
	return served, func() {
		end(nil)
		watch.Wait()
	}
}

// follow connects and follows.
func (f *follower) follow(ctx context.Context, p *results.Printer) error {
	return f.connected(ctx, func(conn *natsconn.Conn, js jetstream.JetStream) error {
		if conn.Server != nil { // the other process has ended just now
			return nil
		}
		return p.Follow(ctx, js, func() {
			terminal.PrintLine(f.stderr, "waiting for stream %s, which does not exist yet", f.cfg.Result.Stream)
		})
	})
}

// readStore prints what is in a store that no process serves; there may be none yet.
func (f *follower) readStore(ctx context.Context, p *results.Printer) error {
	if has, err := jobs.HasStore(f.cfg.Data.Dir); !has || err != nil {
		return err
	}
	err := f.connected(ctx, func(_ *natsconn.Conn, js jetstream.JetStream) error { return p.Print(ctx, js) })
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

// connected calls g with a connection.
func (f *follower) connected(ctx context.Context, g func(*natsconn.Conn, jetstream.JetStream) error) error {
	log := f.log
	if len(f.cfg.NATS.URL) == 0 { // that a connection ends with its process is expected
		log = slog.New(slog.DiscardHandler)
	}
	conn, err := natsconn.ConnectReader(ctx, f.cfg, f.cfg.Data.Dir, false, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn.NC)
	if err != nil {
		return err
	}
	return conn.Explain(g(conn, js))
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
