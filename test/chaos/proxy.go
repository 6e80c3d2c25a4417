package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// state is what a proxy does with its connections.
type state int

const (
	open    state = iota
	stalled       // nothing passes, without an error: a cable is out
	severed       // connections are closed and refused, as by a router
)

func (s state) String() string { return [...]string{"open", "stalled", "severed"}[s] }

// proxy is a stretch of network that can be cut: it passes TCP connections on to an
// address that may change.
type proxy struct {
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	target  string
	state   state
	changed chan struct{} // closed at each change of state, then replaced
	conns   map[net.Conn]struct{}
	closed  bool
}

func newProxy(ctx context.Context) (*proxy, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, changed: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	p.running.Go(func() { p.accept(ctx) })
	return p, nil
}

// address is where the proxy listens; it stays the same.
func (p *proxy) address() string { return p.listener.Addr().String() }

// aim sets where new connections go to.
func (p *proxy) aim(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// set changes the state. Bytes that a stall held up arrive after it, as they would over a
// real network.
func (p *proxy) set(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
	close(p.changed)
	p.changed = make(chan struct{})
	if s == severed {
		p.closeAll()
	}
}

// closeAll closes all connections. The lock is held.
func (p *proxy) closeAll() {
	for c := range p.conns {
		_ = c.Close()
	}
}

// close ends the proxy and waits for its end.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	p.closeAll()
	if p.state == stalled {
		p.state = severed
		close(p.changed)
		p.changed = make(chan struct{})
	}
	p.mu.Unlock()
	p.running.Wait()
}

func (p *proxy) accept(ctx context.Context) {
	for {
		c, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && p.add(c) {
			p.running.Go(func() { p.serve(ctx, c) })
		}
	}
}

// add keeps a connection to be closed by a cut; it returns false, and closes it, where
// there is one now.
func (p *proxy) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.state == severed {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	_ = c.Close()
}

// pass waits while the network is stalled. It returns false when it is severed.
func (p *proxy) pass() bool {
	for {
		p.mu.Lock()
		s, changed := p.state, p.changed
		p.mu.Unlock()
		if s != stalled {
			return s == open
		}
		<-changed
	}
}

func (p *proxy) serve(ctx context.Context, client net.Conn) {
	defer p.drop(client)
	if !p.pass() {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil || !p.add(server) {
		return
	}
	defer p.drop(server)
	var back sync.WaitGroup
	back.Go(func() { p.copy(client, server) })
	p.copy(server, client)
	back.Wait()
}

// copy passes bytes one way until either end is closed, and then closes both.
func (p *proxy) copy(to io.WriteCloser, from io.ReadCloser) {
	defer func() { _ = to.Close() }()
	defer func() { _ = from.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && p.pass() {
			_, writeErr := to.Write(buf[:n])
			err = errors.Join(err, writeErr)
		}
		if err != nil {
			return
		}
	}
}
