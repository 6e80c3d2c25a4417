package natsconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

const (
	// storeWait is how long to wait for a store that another process has open: a command
	// that reads or loads it ends soon.
	storeWait = 10 * time.Second
	// storePoll is the time between two attempts to open it.
	storePoll = 100 * time.Millisecond
)

// StartServer starts the embedded server on dir and connects to it, once no other process
// has the store open. payload is the largest message in bytes, or 0 for the server's default.
// The caller must close the connection.
func StartServer(ctx context.Context, cfg *config.Config, dir string, payload int32, log *slog.Logger) (*Conn, error) {
	end := time.Now().Add(storeWait)
	warned := false
	for range streams.Retry(ctx, storePoll, storePoll) {
		conn, err := tryServer(ctx, cfg, dir, payload, false, log)
		if !errors.Is(err, natsd.ErrLocked) {
			return conn, err
		}
		who := holderOf(dir)
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w%s, and it has not ended within %v: stop it, or set another STAGE_DATA_DIR", err, who, storeWait)
		}
		if !warned {
			log.Warn("another process has the store open, waiting for it to end", slog.String("store", dir+who), slog.Int64("at_most_ms", storeWait.Milliseconds()))
			warned = true
		}
	}
	return nil, context.Cause(ctx)
}

// tryServer starts the server, of a command or of a stage, and connects to it. The error
// is [natsd.ErrLocked] where another process has the store open.
func tryServer(ctx context.Context, cfg *config.Config, dir string, payload int32, command bool, log *slog.Logger) (*Conn, error) {
	srv, err := natsd.Start(natsd.Config{
		Dir: dir, SyncAlways: cfg.Data.Sync.Always, SyncInterval: cfg.Data.Sync.Interval,
		MaxPayloadBytes: payload, Command: command, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	again := func(context.Context) (*nats.Conn, error) {
		return srv.Connect(append(commonOptions(&config.NATSConfig{}, log), nats.Name("stage "+cfg.Name))...)
	}
	nc, err := again(ctx)
	if err != nil {
		srv.Stop()
		return nil, err
	}
	conn := Over(nc, again)
	conn.Server = srv
	return conn, nil
}

// holderOf returns the process that has the store open, " (process 7)"; "" if it has not
// published its address yet.
func holderOf(dir string) string {
	if a, running, err := natsd.Discover(dir); err == nil && running {
		return fmt.Sprintf(" (process %d)", a.PID)
	}
	return ""
}

// ConnectReader connects a command that works on streams beside a stage. It tries the
// server of the configuration; without one, the embedded server that runs on dir; and if
// none runs, it starts one there. If dir has no store it returns a [config.Error], unless
// create is set. The caller must close the connection.
func ConnectReader(ctx context.Context, cfg *config.Config, dir string, create bool, log *slog.Logger) (*Conn, error) {
	if len(cfg.NATS.URL) > 0 {
		return Connect(ctx, cfg, dir, log)
	}
	end := time.Now().Add(storeWait)
	for range streams.Retry(ctx, storePoll, storePoll) {
		addr, running, err := natsd.Discover(dir)
		if err != nil {
			return nil, err
		}
		if running {
			nc, err := dial(ctx, addr.URL, append(commonOptions(&config.NATSConfig{}, log), nats.Token(addr.Token), nats.Name("stage "+cfg.Name)))
			if err == nil {
				return Over(nc, nil), nil
			}
			if now, still, _ := natsd.Discover(dir); still && now.PID == addr.PID || time.Now().After(end) {
				return nil, fmt.Errorf("connect to the embedded server of process %d on %s: %w", addr.PID, dir, err)
			}
			continue // that process has ended
		}
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && !create {
			return nil, config.Invalid(fmt.Errorf("there is no store at %s: name a server with --nats-url, or the store with --data-dir", dir))
		}
		conn, err := tryServer(ctx, cfg, dir, 0, true, log)
		if !errors.Is(err, natsd.ErrLocked) || time.Now().After(end) {
			return conn, err
		}
		// Another process was faster: its server is about to publish its address, or
		// about to end.
	}
	return nil, context.Cause(ctx)
}
