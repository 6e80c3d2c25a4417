package dashboard

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
)

// namedConn is a connection that remembers whether it was closed.
type namedConn struct {
	net.Conn
	name   string
	closed bool
}

func (c *namedConn) Close() error {
	c.closed = true
	return nil
}

// TestTheConnectionIdleForLongestIsDropped: the bound is 3. Each step is a change of
// state, and who is closed by it.
func TestTheConnectionIdleForLongestIsDropped(t *testing.T) {
	bound, conns := newConnBound(3), map[string]*namedConn{}
	for i, step := range []struct {
		name   string
		state  http.ConnState
		closed string
	}{
		{"a", http.StateNew, ""},
		{"b", http.StateNew, ""},
		{"c", http.StateNew, ""},
		{"a", http.StateActive, ""},
		{"a", http.StateIdle, ""}, // b has been idle for longest now
		{"d", http.StateNew, "b"},
		{"b", http.StateIdle, ""}, // was about to become idle when it was closed
		{"c", http.StateActive, ""},
		{"b", http.StateClosed, ""},
		{"e", http.StateNew, "a"},
		{"d", http.StateActive, ""},
		{"e", http.StateActive, ""},
		{"f", http.StateNew, "f"}, // all others have a request
		{"f", http.StateClosed, ""},
		{"c", http.StateClosed, ""},
		{"g", http.StateNew, ""},
		{"g", http.StateActive, ""},
		{"d", http.StateHijacked, ""}, // no longer the server's
		{"h", http.StateNew, ""},
	} {
		c := conns[step.name]
		if c == nil {
			c = &namedConn{name: step.name}
			conns[step.name] = c
		}
		bound.note(c, step.state)
		closed := ""
		for _, c := range conns {
			if c.closed {
				closed += c.name
				c.closed = false
			}
		}
		if closed != step.closed {
			t.Errorf("step %d, %s is %v: closed %q, want %q", i, step.name, step.state, closed, step.closed)
		}
	}
	if len(bound.open) != 3 || len(bound.idle) != 1 {
		t.Errorf("%d connections open and %d idle at the end, want 3 and 1", len(bound.open), len(bound.idle))
	}
}

// countingListener counts the connections that it has accepted and that are not closed.
type countingListener struct {
	net.Listener
	open, most atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if n := l.open.Add(1); n > l.most.Load() { // accepted by one goroutine
		l.most.Store(n)
	}
	return &countedConn{Conn: c, open: &l.open}, nil
}

type countedConn struct {
	net.Conn
	open   *atomic.Int64
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// TestIdleClientsNeitherTakeDescriptorsNorKeepProbesOut: one client in three sends
// nothing, one half a request, and one is between two requests. Real sockets.
func TestIdleClientsNeitherTakeDescriptorsNorKeepProbesOut(t *testing.T) {
	clients := 5000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < 6000 {
		clients = 500
	}
	plain := stagetest.Value(Listen(t.Context(), "127.0.0.1:0", false, "STAGE_HTTP_ADDR"))(t)
	listener := &countingListener{Listener: plain}
	handlers := testHandlers()
	handlers.Ready = func() (bool, string) { return true, "" }
	server := NewServer(listener, config.HTTPConfig{}, handlers, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, t.Context()) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	address := plain.Addr().String()
	for i := range clients {
		c, err := net.DialTimeout("tcp", address, time.Minute) //nolint:noctx // a minute at most
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		defer c.Close() //nolint:errcheck // at the end of the test, all of them
		switch i % 3 {
		case 1:
			io.WriteString(c, "GET /healthz HTTP/1.1\r\n") //nolint:errcheck // it may be dropped by now
		case 2:
			io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") //nolint:errcheck // it may be dropped by now
		}
		if i%(clients/10) == 0 || i == clients-1 {
			probe(t, server.URL()+"readyz")
		}
	}
	if most := listener.most.Load(); most > MaxConns+1 { // one is accepted before another is closed
		t.Errorf("%d clients had %d connections open at the server, want %d at most", clients, most, MaxConns+1)
	}
}

// probe sends a request as a kubelet does, on its own connection.
func probe(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request := stagetest.Value(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	response.Body.Close() //nolint:errcheck // not read
	if response.StatusCode != http.StatusOK {
		t.Fatalf("probe: %s", response.Status)
	}
}

// TestAnActiveConnectionIsNeverDropped: as many requests are being answered as there may
// be connections.
func TestAnActiveConnectionIsNeverDropped(t *testing.T) {
	listener := stagetest.Value(Listen(t.Context(), "127.0.0.1:0", false, "STAGE_HTTP_ADDR"))(t)
	answering, release := make(chan struct{}), make(chan struct{})
	handlers := testHandlers()
	handlers.Ready = func() (bool, string) {
		answering <- struct{}{}
		<-release
		return true, ""
	}
	server := NewServer(listener, config.HTTPConfig{}, handlers, slog.New(slog.DiscardHandler))
	server.server.ConnState = newConnBound(2).note
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, t.Context()) }()
	open := func() net.Conn {
		c, err := net.DialTimeout("tcp", listener.Addr().String(), time.Minute) //nolint:noctx // a minute at most
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })                                    //nolint:errcheck // no longer needed
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil { // so that a failure ends
			t.Fatal(err)
		}
		return c
	}
	var busy []net.Conn
	for range 2 {
		c := open()
		io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n") //nolint:errcheck // the response shows it
		<-answering
		busy = append(busy, c)
	}
	if n, err := open().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a third connection: read %d bytes, %v; want it closed", n, err)
	}
	close(release)
	for i, c := range busy {
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("request %d was dropped: %v", i, err)
			continue
		}
		response.Body.Close() //nolint:errcheck // not read
		if response.StatusCode != http.StatusOK {
			t.Errorf("request %d: %s", i, response.Status)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
