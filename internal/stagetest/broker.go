package stagetest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Broker is a NATS server without a socket, which a test stops and starts again on the
// same store.
type Broker struct {
	t          *testing.T
	dir        string
	payloadMax int32

	mu  sync.Mutex
	srv *server.Server
}

// Core starts a server without a socket and without JetStream, which stops with the test.
func Core(t *testing.T) *server.Server {
	t.Helper()
	return CoreOf(t, &server.Options{})
}

// CoreOf is [Core] with options: users, or JetStream.
func CoreOf(t *testing.T, options *server.Options) *server.Server {
	t.Helper()
	options.StoreDir = Dir(t)
	srv := serve(t, options)
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	return srv
}

// Join connects to a server; the connection is closed with the test.
func Join(t *testing.T, to nats.InProcessConnProvider) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func serve(t *testing.T, options *server.Options) *server.Server {
	t.Helper()
	options.DontListen, options.NoSigs, options.NoLog = true, true, true
	srv, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	return srv
}

// NewBroker starts a server that stops with the test.
func NewBroker(t *testing.T) *Broker {
	t.Helper()
	return NewBrokerFor(t, 8<<20)
}

// NewBrokerFor is [NewBroker] with a limit on messages, in bytes with their headers.
func NewBrokerFor(t *testing.T, payloadMax int32) *Broker {
	t.Helper()
	b := &Broker{t: t, dir: Dir(t), payloadMax: payloadMax}
	b.Start()
	t.Cleanup(b.Stop)
	return b
}

// Start starts the server again.
func (b *Broker) Start() {
	b.t.Helper()
	srv := serve(b.t, &server.Options{ServerName: "stage", JetStream: true, StoreDir: b.dir, MaxPayload: b.payloadMax})
	b.mu.Lock()
	b.srv = srv
	b.mu.Unlock()
}

// Stop stops the server, and returns when it has ended.
func (b *Broker) Stop() {
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
}

// InProcessConn connects to the server that runs at the moment, so that a client's
// reconnect finds the next one.
func (b *Broker) InProcessConn() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.srv.InProcessConn()
}

// Connect opens a connection that outlives the server: to the broker itself, or to one
// through a [Wire].
func (b *Broker) Connect(to nats.InProcessConnProvider) *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(to), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

// Wire is the network between one process and the server, and the process's life: once it
// is dead nothing more of it arrives.
type Wire struct {
	*Broker

	// Sees is called with what the process is about to send, and returns how much of it
	// still arrives before the process dies; -1: it goes on.
	Sees func(data []byte) (arrives int)
	// Dies is called when that ends the process. It must not block.
	Dies func()

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

// InProcessConn implements [nats.InProcessConnProvider].
func (w *Wire) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, net.ErrClosed
	}
	c, err := w.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	w.conns = append(w.conns, c)
	return &wireConn{Conn: c, wire: w}, nil
}

// Die ends what the process can send and receive.
func (w *Wire) Die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for _, c := range w.conns {
		_ = c.Close()
	}
}

// Dead reports whether the process is.
func (w *Wire) Dead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// Cut breaks the connections; the client connects again.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

type wireConn struct {
	net.Conn
	wire *Wire
}

func (c *wireConn) Write(p []byte) (int, error) {
	if c.wire.Dead() {
		return 0, net.ErrClosed
	}
	n := c.wire.Sees(p)
	if n < 0 {
		return c.Conn.Write(p)
	}
	_, _ = c.Conn.Write(p[:n])
	c.wire.Die()
	c.wire.Dies()
	return 0, net.ErrClosed
}
