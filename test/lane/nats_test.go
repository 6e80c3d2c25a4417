package lane_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// broker is the NATS server, which is restarted now and then on the same store.
type broker struct {
	t   *testing.T
	dir string

	mu  sync.Mutex
	srv *server.Server
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{t: t, dir: stagetest.Dir(t)}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	srv, err := server.NewServer(&server.Options{ServerName: "lane", DontListen: true, JetStream: true, StoreDir: b.dir, NoSigs: true, NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		b.t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(time.Minute) {
		b.t.Fatal("the server is not ready")
	}
	b.mu.Lock()
	b.srv = srv
	b.mu.Unlock()
}

func (b *broker) stop() {
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
}

// InProcessConn connects to the server that runs at the moment, so that a client's reconnect finds the next one.
func (b *broker) InProcessConn() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.srv.InProcessConn()
}

// connect opens a connection that outlives the server.
func (b *broker) connect(to nats.InProcessConnProvider) *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(to), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

// wire is the network between one process and the server, and the process's life: once it is dead nothing more of it
// arrives.
type wire struct {
	*broker
	// sees is called with what the process is about to send, and returns how much of it still arrives before the process
	// dies; -1: it goes on.
	sees func(data []byte) (arrives int)
	// dies is called when that ends the process. It must not block.
	dies func()

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

// InProcessConn implements [nats.InProcessConnProvider].
func (w *wire) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, net.ErrClosed
	}
	c, err := w.broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	w.conns = append(w.conns, c)
	return &wireConn{Conn: c, wire: w}, nil
}

// die ends what the process can send and receive.
func (w *wire) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func (w *wire) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// cut breaks the connections; the client connects again.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

type wireConn struct {
	net.Conn
	wire *wire
}

func (c *wireConn) Write(p []byte) (int, error) {
	if c.wire.isDead() {
		return 0, net.ErrClosed
	}
	n := c.wire.sees(p)
	if n < 0 {
		return c.Conn.Write(p)
	}
	_, _ = c.Conn.Write(p[:n])
	c.wire.die()
	c.wire.dies()
	return 0, net.ErrClosed
}
