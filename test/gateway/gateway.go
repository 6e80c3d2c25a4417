// Package gateway is the way from a stage to an LLM server, and what goes wrong on it:
// nothing listens, a proxy answers in the server's place, or calls are accepted and never
// answered.
//
//	g, err := gateway.New(server)
//	if err != nil { … }
//	defer g.Close()
//	err = g.Set(gateway.Refused) // calls of g.URL() are refused, those in flight are cut
//	err = g.Set(gateway.Open)
package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// State is what a gateway does with calls.
type State int

// The states. The zero value is Open.
const (
	Open       State = iota // calls reach the server
	Refused                 // connections are refused; those that are open are closed
	BadGateway              // calls are answered with 502 and a page of HTML; those in flight still get their replies
	Silent                  // calls are accepted and never answered; those in flight still get their replies
)

// Troubles are the states in which no new call succeeds.
var Troubles = []State{Refused, BadGateway, Silent}

// String returns the state in a few words.
func (s State) String() string { return [...]string{"open", "refused", "bad gateway", "silent"}[s] }

// Gateway is an address of the loopback interface that keeps its port in all states. Make
// it with [New]. It is safe for concurrent use.
type Gateway struct {
	next     http.Handler
	addr     *net.TCPAddr
	reserved int // a socket that is bound to the port and does not listen

	changing sync.Mutex // held by Set and Close
	srv      *http.Server
	served   chan struct{} // closed when srv has returned

	mu    sync.Mutex
	state State
	stats Stats
}

// Stats counts the calls that a gateway kept from the server. Refused ones can't be
// counted.
type Stats struct {
	Turned      int // calls that were answered 502, or accepted and not answered
	Waiting     int // calls without an answer at the moment
	MostWaiting int // the most calls that waited at a time
}

// New returns an open gateway to a server. The caller must close it.
func New(next http.Handler) (*Gateway, error) {
	g := &Gateway{next: next}
	if err := g.reserve(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if err := g.listen(); err != nil {
		_ = syscall.Close(g.reserved)
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return g, nil
}

// reserve binds a socket to a free port. While it doesn't listen, connections to the port
// are refused; and no other process gets the port, nor does a connection of this machine
// get it as its own end and reach itself.
func (g *Gateway) reserve() (err error) {
	syscall.ForkLock.RLock()
	g.reserved, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(g.reserved)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = syscall.Close(g.reserved)
		}
	}()
	if err := syscall.SetsockoptInt(g.reserved, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil { // for listen
		return err
	}
	if err := syscall.Bind(g.reserved, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	name, err := syscall.Getsockname(g.reserved)
	if err != nil {
		return err
	}
	g.addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}
	return nil
}

func (g *Gateway) listen() error {
	listener, err := net.ListenTCP("tcp4", g.addr)
	if err != nil {
		return err
	}
	srv, served := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}, make(chan struct{})
	g.srv, g.served = srv, served
	go func() {
		defer close(served)
		_ = srv.Serve(listener) // ends with refuse
	}()
	return nil
}

func (g *Gateway) refuse() {
	_ = g.srv.Close()
	<-g.served
	g.srv = nil
}

// URL is the base URL of the server behind the gateway.
func (g *Gateway) URL() string { return "http://" + g.addr.String() + "/v1" }

// Set changes the state. It returns once the state applies to new calls.
func (g *Gateway) Set(to State) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.mu.Lock()
	g.state = to
	g.mu.Unlock()
	if to == Refused && g.srv != nil {
		g.refuse()
	}
	if to != Refused && g.srv == nil {
		return g.listen()
	}
	return nil
}

// Close closes all connections and releases the port. The gateway must not be used
// afterwards.
func (g *Gateway) Close() {
	g.changing.Lock()
	defer g.changing.Unlock()
	if g.srv != nil {
		g.refuse()
	}
	_ = syscall.Close(g.reserved)
}

// Stats returns the counts so far.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// ServeHTTP implements [http.Handler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch g.arrive() {
	case Open, Refused: // a connection from before
		g.next.ServeHTTP(w, r)
	case BadGateway:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n")
	case Silent:
		_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection goes unnoticed
		<-r.Context().Done()
		g.mu.Lock()
		g.stats.Waiting--
		g.mu.Unlock()
	}
}

// arrive counts a call.
func (g *Gateway) arrive() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.state {
	case Open, Refused:
	case BadGateway:
		g.stats.Turned++
	case Silent:
		g.stats.Turned++
		g.stats.Waiting++
		g.stats.MostWaiting = max(g.stats.MostWaiting, g.stats.Waiting)
	}
	return g.state
}
