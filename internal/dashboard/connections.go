package dashboard

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// MaxConns is the most connections of the HTTP server. Clients are a few scrapers, probes and browsers; anything above
// is a client that leaks connections, and must not take descriptors that calls need.
const MaxConns = 128

// connBound bounds the connections of an HTTP server. Its note is the server's ConnState hook.
//
// A new connection above the bound is let in, and the one that has been idle for longest is closed in its place: idle is
// between two requests, or before the first is complete. So a probe is answered at once whatever number of idle clients
// there is; a client of a dropped connection sees what it sees after the server's idle time-out. A connection with a
// request being answered is never closed: where all are, the new one is, for a refusal is better than a client that hangs.
type connBound struct {
	most int

	mu   sync.Mutex
	open map[net.Conn]struct{}
	idle []net.Conn // those of them that may be closed, idle for longest first
}

func newConnBound(most int) *connBound {
	return &connBound{most: most, open: make(map[net.Conn]struct{})}
}

// note is called at each change of a connection's state. For a new one the server calls it before it accepts the next.
func (b *connBound) note(c net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if state == http.StateNew {
		if len(b.open) >= b.most && !b.dropIdle() {
			c.Close() //nolint:errcheck // the client has gone, or sees it
			return
		}
		b.open[c] = struct{}{}
	}
	if i := slices.Index(b.idle, c); i >= 0 {
		b.idle = slices.Delete(b.idle, i, i+1)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		if _, ok := b.open[c]; ok { // else it was dropped just now
			b.idle = append(b.idle, c)
		}
	case http.StateClosed, http.StateHijacked:
		delete(b.open, c)
	case http.StateActive:
	}
}

// dropIdle closes the connection that has been idle for longest, if there is one. The lock is held: so none is closed
// after its request has been noted.
func (b *connBound) dropIdle() bool {
	if len(b.idle) == 0 {
		return false
	}
	c := b.idle[0]
	b.idle = slices.Delete(b.idle, 0, 1)
	delete(b.open, c)
	c.Close() //nolint:errcheck // the client has gone, or sees it
	return true
}
