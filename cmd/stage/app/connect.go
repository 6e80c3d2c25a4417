package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
)

const (
	connectTimeout = 5 * time.Second
	reconnectWait  = 250 * time.Millisecond
	// pingInterval finds a dead connection within twice the time; the library's two minutes would hold rows for as long.
	pingInterval = 10 * time.Second
)

// connection is a connection to NATS and, where none is named, the embedded server behind it.
type connection struct {
	nc     *nats.Conn
	server *natsd.Server // nil: an external server
}

// close closes the connection and stops the embedded server.
func (c *connection) close() {
	c.nc.Close()
	if c.server != nil {
		c.server.Stop()
	}
}

// explain adds what the server said about a request that it did not answer.
func (c *connection) explain(err error) error { return consumer.Denied(c.nc, err) }

// connect connects to the server of the configuration; without one it starts the embedded server on dir.
func connect(ctx context.Context, cfg *Config, dir string, log *slog.Logger) (*connection, error) {
	if len(cfg.NATS.URL) == 0 {
		return startServer(ctx, cfg, dir, 0, log)
	}
	opts, err := natsOptions(cfg, log)
	if err != nil {
		return nil, err
	}
	nc, err := dial(ctx, cfg.NATS.URL.Joined(), opts)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s (STAGE_NATS_URL): %w", cfg.NATS.URL, mendConnect(err))
	}
	return &connection{nc: nc}, nil
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

// commonOptions are those of every connection: it is kept up for ever, and what goes wrong on it is logged.
func commonOptions(log *slog.Logger) []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		// Credentials that have expired are replaced while the stage runs; it must still be there then.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("connection to NATS lost", slog.Any("error", err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("connection to NATS is back", slog.String("url", nc.ConnectedUrlRedacted()))
		}),
		// The server does not answer a request that the user may not make; this is the only place that tells why.
		nats.ErrorHandler(reportErrors(log)),
	}
}

const (
	// reportEvery is the shortest time between two reports of the same error: a request that is denied is made again and
	// again, and each is told of.
	reportEvery = time.Minute
	// reportKinds bounds the errors that are remembered.
	reportKinds = 64
)

// reportErrors logs what the server tells on the side.
func reportErrors(log *slog.Logger) nats.ErrHandler {
	var mu sync.Mutex
	last := make(map[string]time.Time)
	return func(_ *nats.Conn, _ *nats.Subscription, err error) {
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

// natsOptions are the options for the server of the configuration. Secrets in files are read again at each reconnect.
func natsOptions(cfg *Config, log *slog.Logger) ([]nats.Option, error) {
	n := &cfg.NATS
	opts := append(commonOptions(log), nats.Name("stage "+cfg.Name))
	if n.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(n.InboxPrefix))
	}
	if n.Creds != "" {
		opts = append(opts, nats.UserCredentials(n.Creds))
	}
	if n.NKey != "" {
		opt, err := nats.NkeyOptionFromSeed(n.NKey)
		if err != nil {
			return nil, exitWith(exitUsage, fmt.Errorf("STAGE_NATS_NKEY: %w", err))
		}
		opts = append(opts, opt)
	}
	read := func(variable string, s Secret) string {
		value, err := s.Value()
		if err != nil {
			log.Error("secret not read", slog.String("variable", variable), slog.Any("error", err))
		}
		return value
	}
	if n.Token.IsSet() {
		opts = append(opts, nats.TokenHandler(func() string { return read("STAGE_NATS_TOKEN", n.Token) }))
	}
	if n.User != "" {
		opts = append(opts, nats.UserInfoHandler(func() (string, string) { return n.User, read("STAGE_NATS_PASSWORD", n.Password) }))
	}
	if n.TLSCA != "" {
		opts = append(opts, nats.RootCAs(n.TLSCA))
	}
	if n.TLSCert != "" {
		opts = append(opts, nats.ClientCert(n.TLSCert, n.TLSKey))
	}
	if n.TLSFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts, nil
}

// mendConnect says what to do about a connection that could not be made.
func mendConnect(err error) error {
	switch {
	case errors.Is(err, nats.ErrNoServers):
		return fmt.Errorf("%w: is the server running, and are host and port right", err)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return fmt.Errorf("%w: check STAGE_NATS_CREDS, _NKEY, _TOKEN or _USER and _PASSWORD", err)
	default:
		return err
	}
}
