// Package natsconn connects to NATS or to an embedded server, and reports what to fix
// when that fails.
package natsconn

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
)

// Conn is a connection to a NATS server, with the embedded server where this process runs
// it. Safe for concurrent use.
type Conn struct {
	Server   *natsd.Server // nil means that another process runs the server
	External bool          // the caller of the stage made the connection and goes on using it, so subscriptions must be drained

	login config.NATSConfig // as it was made; zero for the embedded server
	dial  Dial              // makes another connection to the same server; nil means that nobody can

	mu       sync.Mutex // guards the rest, for a few instructions
	nc       *nats.Conn
	made     time.Time          // when nc was made
	closing  error              // why the connection before nc was closed, or why no other could be made since
	unsteady bool               // the one before nc had not lasted either
	movers   []func(*nats.Conn) // called with each later connection
	full     error              // see Full
	fullers  []func(error)      // called with each change of full
}

// Dial makes a connection. Ctx ends the attempt.
type Dial func(ctx context.Context) (*nats.Conn, error)

// Over returns a Conn over a connection that the caller has made. With a dial,
// [Conn.Keep] makes another when that one is closed; nil means that it can't be replaced.
func Over(nc *nats.Conn, dial Dial) *Conn { return &Conn{nc: nc, dial: dial, made: time.Now()} }

// Reaching returns a dial whose connections reach JetStream where the settings say.
func Reaching(n *config.NATSConfig, dial Dial) Dial {
	return func(ctx context.Context) (*nats.Conn, error) {
		nc, err := dial(ctx)
		if err == nil && n.APIPrefix() != "" {
			streams.SetAPIPrefix(nc, n.APIPrefix())
		}
		return nc, err
	}
}

// NC returns the present connection. It may be replaced, so an owner that keeps it must
// register with [Conn.OnMove].
func (c *Conn) NC() *nats.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nc
}

const (
	connectTimeout = 5 * time.Second
	closeTimeout   = time.Second // for the last messages to arrive
	reconnectWait  = 250 * time.Millisecond
	// pingInterval finds a dead connection within twice the time; the library's two
	// minutes would hold rows for as long.
	pingInterval = 10 * time.Second
)

// Close closes the connection and stops the embedded server.
func (c *Conn) Close() {
	nc := c.NC()
	if nc.IsConnected() {
		// A command that was interrupted closes its connection while messages still come
		// in. The kernel answers them with a reset, and the server may meet the reset
		// before it has read our last messages, which end the readings. FlushTimeout is
		// simpler, but it shares timers between the bubbles of tests.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout) // the command's own may be over
		_ = nc.FlushWithContext(ctx)
		cancel()
	}
	nc.Close()
	if c.Server != nil {
		c.Server.Stop()
	}
}

// Explain adds to the error of a request the permission that the server denied it, or the
// domain in which nobody answers, and names settings as users set them.
func (c *Conn) Explain(err error) error {
	return config.Explained(streams.Located(c.NC(), streams.Denied(c.NC(), err)))
}

// Connect connects to the server of the configuration; without one it starts the embedded
// server on dir. The caller must close the connection. Errors of the configuration are a
// [config.Error].
func Connect(ctx context.Context, cfg *config.Config, dir string, log *slog.Logger) (*Conn, error) {
	if len(cfg.NATS.URL) == 0 {
		return StartServer(ctx, cfg, dir, 0, log)
	}
	opts, err := natsOptions(cfg, log)
	if err != nil {
		return nil, err
	}
	reportContext(cfg, log)
	again := Reaching(&cfg.NATS, func(ctx context.Context) (*nats.Conn, error) { return dial(ctx, cfg.NATS.URL.Joined(), opts) })
	nc, err := again(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s (%s): %w", cfg.NATS.URL, cfg.NATSFrom(), withHint(&cfg.NATS, err))
	}
	conn := Over(nc, again)
	conn.login = cfg.NATS
	return conn, nil
}

// reportContext logs that a context of the nats CLI is in use which the command did not
// name, and what of it is not.
func reportContext(cfg *config.Config, log *slog.Logger) {
	n := cfg.NATSContext()
	if n == nil {
		return
	}
	if n.Selected {
		log.Info("using the context that is selected in the nats CLI", slog.String("context", n.Name), slog.String("url", cfg.NATS.URL.String()))
	}
	if len(n.Ignored) > 0 {
		log.Warn("settings of the context are not supported and ignored", slog.String("context", n.Name), slog.Any("settings", n.Ignored))
	}
}

// dial connects; ctx ends the attempt.
func dial(ctx context.Context, url string, opts []nats.Option) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan result, 1)
	go func() { // ends within connectTimeout for each server of the list
		nc, err := nats.Connect(url, opts...)
		done <- result{nc, err}
	}()
	select {
	case r := <-done:
		return r.nc, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.nc != nil {
				r.nc.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// commonOptions returns the options of every connection: it reconnects for ever, and its
// errors are logged with what to do about them, by the settings of login.
func commonOptions(login *config.NATSConfig, log *slog.Logger) []nats.Option {
	report := reporter(log)
	return []nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		// Credentials that have expired may be replaced while the stage runs, so an error
		// of them must not end it.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("connection to NATS lost", slog.Any("error", withLaterHint(login, err)))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("connection to NATS is back", slog.String("url", nc.ConnectedUrlRedacted()))
		}),
		// The server does not answer a request that the user may not make; only this
		// handler learns why.
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if !streams.IsReadingEnd(err) {
				report(withLaterHint(login, err))
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { report(withLaterHint(login, err)) }),
	}
}

const (
	// reportEvery is the shortest time between two reports of the same error: a request
	// that is denied is retried, and denied each time.
	reportEvery = time.Minute
	// reportKinds bounds the errors that are remembered.
	reportKinds = 64
)

// reporter returns a function that logs errors, each of them at most once per
// [reportEvery].
func reporter(log *slog.Logger) func(err error) {
	var mu sync.Mutex
	last := make(map[string]time.Time)
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if at, known := last[err.Error()]; known && now.Sub(at) < reportEvery {
			return
		}
		if len(last) >= reportKinds {
			clear(last)
		}
		last[err.Error()] = now
		log.Warn("NATS reports an error", slog.Any("error", err))
	}
}
