package dashboard

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// MaxConns bounds the connections of the HTTP server. Its clients are a few scrapers,
// probes and browsers; more are clients that leak connections, which must not take
// descriptors that calls need.
const MaxConns = 128

// connBound bounds the connections of an HTTP server. note is the server's ConnState hook.
//
// A new connection above the bound is accepted, and the one that has been idle longest is
// closed in its place: idle is between two requests, or before the first is complete. So
// a probe is answered immediately however many idle clients there are; to the client of a
// closed connection it looks like the server's idle time-out. A connection with a request
// being answered is never closed: if all have one, the new one is closed, because a
// refusal is better than a client that hangs.
type connBound struct {
	most int

	mu   sync.Mutex
	open map[net.Conn]struct{}
	idle []net.Conn // the open ones that are idle, the longest first
}

// newConnBound returns a bound of at most that many connections.
func newConnBound(most int) *connBound {
	return &connBound{most: most, open: make(map[net.Conn]struct{})}
}

// note tracks the state of a connection. For a new one the server calls it before it
// accepts the next.
func (b *connBound) note(c net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if state == http.StateNew {
		if len(b.open) >= b.most && !b.dropIdle() {
			c.Close() //nolint:errcheck // the client has gone, or notices
			return
		}
		b.open[c] = struct{}{}
	}
	if i := slices.Index(b.idle, c); i >= 0 {
		b.idle = slices.Delete(b.idle, i, i+1)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		// A dropped connection may still come here: it was idle, the server read its next
		// request, dropIdle closed it before the server noted that, and now the answer ends.
		if _, ok := b.open[c]; ok {
			b.idle = append(b.idle, c)
		}
	case http.StateClosed, http.StateHijacked:
		delete(b.open, c)
	case http.StateActive:
	}
}

// dropIdle closes the connection that has been idle longest and reports whether there was
// one. The lock is held. Without it, the server could note that the connection has become
// active between the choice and the close, and a request would be cut off.
func (b *connBound) dropIdle() bool {
	if len(b.idle) == 0 {
		return false
	}
	c := b.idle[0]
	b.idle = slices.Delete(b.idle, 0, 1)
	delete(b.open, c)
	c.Close() //nolint:errcheck // the client has gone, or notices
	return true
}
