// Package natsd runs a JetStream server inside this process.
//
// It is what `stage run`, `process` and `demo` use when no NATS server is named, and what
// the tests use instead of a mock: a real nats-server with file storage. One process owns
// a store directory at a time (a lock file says which); others find the running server by
// the address file that it leaves in the directory.
//
//	srv, err := natsd.Start(natsd.Config{Dir: "stage-data", SyncAlways: true})
//	if err != nil { … }
//	defer srv.Stop()
//	nc, err := srv.Connect() // inside the process, no socket
package natsd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// readyTimeout bounds the wait for the server to recover its store and listen. Recovery
// of a large store takes seconds, never minutes.
const readyTimeout = 2 * time.Minute

// Config says how to run the server.
type Config struct {
	// Dir is the store directory; it is created with mode 0700. Required.
	Dir string
	// NoListen keeps the server off the network: only [Server.Connect] reaches it. The
	// zero value listens on a free port of the loopback interface, guarded by a random
	// token, and leaves its address in Dir (see [Discover]).
	NoListen bool
	// Command says in the address that the server is that of a command, which ends soon
	// (see [Lock]).
	Command bool
	// SyncAlways makes every stored message durable before it is acknowledged, also
	// against a power cut.
	SyncAlways bool
	// SyncInterval is the time between syncs where SyncAlways is false; 0 means the
	// server's default of two minutes.
	SyncInterval time.Duration
	// MaxPayloadBytes is the largest message; 0 means the server's default of 1 MiB.
	MaxPayloadBytes int32
	// Logger receives the server's warnings and errors; nil discards them.
	Logger *slog.Logger
}

// Server is a running embedded server. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	lock    *flock.Flock
	token   string
	stopped sync.Once
	failed  chan struct{} // see Failed

	mu       sync.Mutex // guards the rest, for a few instructions
	srv      *server.Server
	port     int    // the port that it listens on; 0 until it has chosen a free one
	stopping bool   // Stop was called, so no other server starts
	failure  string // see Failure
}

// Start runs a server on cfg.Dir and returns when it accepts connections. The caller must
// Stop it. It returns [ErrLocked] when another process runs a server on that directory.
func Start(cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("embedded server: the store directory is empty")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded server: store directory: %w", err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, lock: lock, failed: make(chan struct{}, 1)}
	if !cfg.NoListen {
		s.token = rand.Text()
	}
	if err := s.start(); err != nil {
		s.Stop()
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	return s, nil
}

// Restart stops the server and starts it again on the same store, with the same address
// and token, while the directory stays locked: it accepts no message for a stream any
// more once a write to its files has failed, be it for lack of room, until then.
// Connections inside the process are made again by the client library. After an error
// there is no server, and Restart may be called again. It must not be called by two
// goroutines at a time.
func (s *Server) Restart() error {
	old := s.running()
	old.Shutdown()
	old.WaitForShutdown()
	s.mu.Lock()
	s.failure = "" // the new server may find another before it has started
	s.mu.Unlock()
	if err := s.start(); err != nil {
		return fmt.Errorf("embedded server: start again: %w", err)
	}
	return nil
}

// running is the present server.
func (s *Server) running() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// InProcessConn implements [nats.InProcessConnProvider] by a connection to the present
// server. It makes the connections of [Server.Connect] come back after a
// [Server.Restart], and serves those with other options.
func (s *Server) InProcessConn() (net.Conn, error) { return s.running().InProcessConn() }

// start starts the server. After an error the caller must Stop it.
func (s *Server) start() (err error) {
	cfg := s.cfg
	if err := removeHalfCreated(cfg.Dir); err != nil {
		return err
	}
	opts := &server.Options{
		ServerName: "stage-embedded",
		JetStream:  true,
		StoreDir:   cfg.Dir,
		NoSigs:     true,
		DontListen: cfg.NoListen,
		SyncAlways: cfg.SyncAlways,
		// By default the server's limit is three quarters of the space that is free when
		// it starts, even if room is made later. Here the disk itself is the limit, and
		// the caller looks at [Server.Free].
		JetStreamMaxStore: math.MaxInt64 / 2,
	}
	if !cfg.SyncAlways {
		opts.SyncInterval = cfg.SyncInterval
	}
	if cfg.MaxPayloadBytes > 0 {
		opts.MaxPayload = cfg.MaxPayloadBytes
		opts.MaxPending = max(server.MAX_PENDING_SIZE, 2*int64(cfg.MaxPayloadBytes))
	}
	if !cfg.NoListen {
		opts.Host, opts.Port, opts.Authorization = "127.0.0.1", s.freePort(), s.token
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	srv.SetLoggerV2(slogger{log, s.noteFailure}, false, false, false)
	s.mu.Lock()
	s.srv = srv
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		return errors.New("it was stopped meanwhile")
	}
	srv.Start()
	switch {
	case !srv.ReadyForConnections(readyTimeout):
		return fmt.Errorf("not ready after %v; the store in %s may be damaged or its disk full", readyTimeout, cfg.Dir)
	case !srv.JetStreamEnabled():
		return fmt.Errorf("JetStream did not start on %s; is the disk full or the directory not writable", cfg.Dir)
	case cfg.NoListen:
		return nil
	}
	if addr, ok := srv.Addr().(*net.TCPAddr); ok {
		s.mu.Lock()
		s.port = addr.Port
		s.mu.Unlock()
	}
	return writeAddress(cfg.Dir, Address{URL: s.URL(), Token: s.token, PID: os.Getpid(), Command: cfg.Command})
}

// freePort is the port that the server had before a restart, if nobody has taken it
// since; else any free one.
func (s *Server) freePort() int {
	if s.port == 0 {
		return server.RANDOM_PORT
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))) //nolint:noctx // it ends at once
	if err != nil {
		return server.RANDOM_PORT
	}
	_ = l.Close()
	return s.port
}

// Connect opens a connection inside the process; it needs no socket. The caller must
// close it.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{nats.InProcessServer(s), nats.Token(s.token), nats.MaxReconnects(-1)}, opts...)
	nc, err := nats.Connect("", opts...)
	if err != nil {
		return nil, fmt.Errorf("embedded server: connect: %w", err)
	}
	return nc, nil
}

// URL is the address that other processes connect to, with the [Server.Token]; empty with
// NoListen.
func (s *Server) URL() string {
	addr, ok := s.running().Addr().(*net.TCPAddr)
	if !ok || s.token == "" {
		return ""
	}
	return "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port))
}

// Token is the secret that connections over the network must show; empty with NoListen.
func (s *Server) Token() string { return s.token }

const (
	// leaveTimeout is how long the server of a command waits for other processes that
	// work through it, leavePoll the time between two looks.
	leaveTimeout = 5 * time.Second
	leavePoll    = 20 * time.Millisecond
)

// Stop shuts the server down, waits until its store is closed and releases the directory.
// Calling it again does nothing.
//
// Nobody finds the server from then on. That of a command first waits for those who found
// it before, at most 5 s: else two commands at once end so that the first one takes the
// streams from under the second.
func (s *Server) Stop() {
	s.stopped.Do(func() {
		if s.token != "" {
			_ = os.Remove(filepath.Join(s.cfg.Dir, addressFile))
		}
		s.mu.Lock()
		srv := s.srv
		s.stopping = true
		s.mu.Unlock()
		if srv != nil {
			for end := time.Now().Add(leaveTimeout); s.cfg.Command && srv.NumClients() > 0 && time.Now().Before(end); {
				time.Sleep(leavePoll)
			}
			srv.Shutdown()
			srv.WaitForShutdown()
		}
		_ = s.lock.Close()
	})
}

// slogger passes the server's warnings and errors on; its notices and debug lines are of
// no use to a user of the stage.
type slogger struct {
	log     *slog.Logger
	noticed func(text string) // called with each error
}

func (slogger) Noticef(string, ...any) {}
func (slogger) Debugf(string, ...any)  {}
func (slogger) Tracef(string, ...any)  {}

func (l slogger) Warnf(format string, v ...any) {
	l.log.Warn("embedded nats-server", slog.String("message", fmt.Sprintf(format, v...)))
}

func (l slogger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.noticed(text)
	l.log.Error("embedded nats-server", slog.String("message", text))
}

func (l slogger) Fatalf(format string, v ...any) {
	l.log.Error("embedded nats-server", slog.String("message", fmt.Sprintf(format, v...)))
}
