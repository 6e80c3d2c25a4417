package stagetest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// Cable lies between a server inside the process and its clients, so that a test can say
// what the server says. Clients connect by [Cable.Connect], as often as they like.
type Cable struct {
	n *NATS

	mu      sync.Mutex
	clients []net.Conn // the cable's ends of the connections
	payload int        // that the server announces; 0 means its own
	refuse  string     // what it says to new connections; empty means that it lets them in
	made    int
}

// Cable returns a cable to the server.
func (n *NATS) Cable() *Cable { return &Cable{n: n} }

// Connect makes a connection that ends with the test.
func (w *Cable) Connect() (*nats.Conn, error) {
	nc, err := w.n.Server.Connect(nats.InProcessServer(w))
	if err == nil {
		w.n.T.Cleanup(nc.Close)
	}
	return nc, err
}

// Made is how many connections there were so far.
func (w *Cable) Made() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made
}

// Announce has the server announce to later connections that it takes messages of so many
// bytes.
func (w *Cable) Announce(maxPayload int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.payload = maxPayload
}

// Refuse has the server end later connections with an error at once; empty means that it
// lets them in.
func (w *Cable) Refuse(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = text
}

// Fail has the server end all connections with an error, such as "Maximum Payload
// Violation". Nothing may be on its way.
func (w *Cable) Fail(text string) {
	w.mu.Lock()
	clients := w.clients
	w.clients = nil
	w.mu.Unlock()
	for _, c := range clients {
		_, _ = fmt.Fprintf(c, "-ERR '%s'\r\n", text)
		_ = c.Close()
	}
}

// InProcessConn implements [nats.InProcessConnProvider].
func (w *Cable) InProcessConn() (net.Conn, error) {
	server, err := w.n.Server.InProcessConn()
	if err != nil {
		return nil, err
	}
	client, end := net.Pipe()
	w.mu.Lock()
	w.made++
	w.clients = append(w.clients, end)
	payload, refuse := w.payload, w.refuse
	w.mu.Unlock()
	both := func() { _, _ = end.Close(), server.Close() }
	go func() {
		defer both()
		_, _ = io.Copy(server, end)
	}()
	go func() {
		defer both()
		said := make([]byte, 64<<10)
		for first := true; ; first = false {
			n, err := server.Read(said)
			if err != nil {
				return
			}
			text := said[:n]
			if payload > 0 { // it says so again once the client has introduced itself
				text = bytes.Replace(text, fmt.Appendf(nil, `"max_payload":%d`, 1<<20), fmt.Appendf(nil, `"max_payload":%-7d`, payload), 1)
			}
			if _, err := end.Write(text); err != nil {
				return
			}
			if first && refuse != "" {
				_, _ = fmt.Fprintf(end, "-ERR '%s'\r\n", refuse)
				return
			}
		}
	}()
	return client, nil
}
