package llmtest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// PipeListener is a [net.Listener] of connections inside the process: what its
// DialContext opens, its Accept hands out. Unlike sockets, such connections let time pass
// in a testing/synctest bubble. Make it with [NewPipeListener].
type PipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewPipeListener returns a listener that is ready to accept.
func NewPipeListener() *PipeListener {
	return &PipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements [net.Listener]. It returns [net.ErrClosed] after Close.
func (l *PipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. Open connections stay open.
func (l *PipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener].
func (l *PipeListener) Addr() net.Addr { return pipeAddr{} }

// URL is an address for clients that dial with DialContext; any host does.
func (l *PipeListener) URL() string { return "http://llm.test/v1" }

// DialContext opens a connection, whatever the address, for [http.Transport.DialContext].
// After Close it is refused.
func (l *PipeListener) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	server, client := net.Pipe()
	err := error(syscall.ECONNREFUSED)
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_, _ = server.Close(), client.Close()
	return nil, &net.OpError{Op: "dial", Net: network, Addr: pipeAddr{}, Err: err}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// Start runs a server of this configuration on a new [PipeListener], over real HTTP and
// without sockets: it takes no port and no descriptors. The caller must call stop, see
// [Server.Pipe].
func (c Config) Start() (dial func(ctx context.Context, network, address string) (net.Conn, error), stop func(), err error) {
	server, err := New(c)
	if err != nil {
		return nil, nil, err
	}
	listener, stop := server.Pipe()
	return listener.DialContext, stop, nil
}

// Pipe serves on a new [PipeListener]. The caller must call stop: it closes the
// listener and all connections and returns when every connection has ended.
func (s *Server) Pipe() (l *PipeListener, stop func()) {
	l = NewPipeListener()
	var server, conns sync.WaitGroup
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: time.Minute,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew: // called by Serve itself, so never after it returned
				conns.Add(1)
			case http.StateClosed, http.StateHijacked:
				conns.Done()
			case http.StateActive, http.StateIdle:
			}
		},
	}
	server.Go(func() { _ = srv.Serve(l) }) // always ends with ErrServerClosed
	return l, func() {
		_ = srv.Close()
		server.Wait()
		conns.Wait()
	}
}
