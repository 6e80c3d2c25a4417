package consumer_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"regexp"
	"sync"
	"time"
)

var errNoLink = errors.New("the link is down")

// What a link may lose of what a client sends: acks, requests to read the results, and entries of the journal.
var (
	entries = regexp.MustCompile(`HPUB journal\.[^\r]*\r\nNATS/1\.0\r\n(?:[^\r]+\r\n)*\r\n[^\r]*\r\n`)
	acks    = regexp.MustCompile(`PUB \$JS\.ACK\.[^\r]*\r\n\+ACK\r\n`)
	reads   = regexp.MustCompile(`PUB \$JS\.API\.CONSUMER\.CREATE\.RESULTS[^\r]*\r\n[^\r]*\r\n`)
)

var serverVersion = regexp.MustCompile(`(INFO \{[^\r]*"version":")[^"]*`)

// leastLatency is the least time that anything takes from one end of a link to the other. It separates cause from effect:
// what the server did in answer to what it did before, it did at least two of these later.
const leastLatency = 200 * time.Microsecond

// link is the network between one process and the server, and the process's own life: it may be asleep, or dead. It never
// blocks a writer: a client holds its lock while it writes, and a lock that is waited for would stop virtual time.
type link struct {
	dial func() (net.Conn, error)
	// version is what the server announces; empty: its real version.
	version string
	usual   time.Duration // latency while the network is not slow

	mu      sync.Mutex
	changed *sync.Cond
	latency time.Duration  // one way
	asleep  bool           // suspended: nothing is sent or received, and nothing is lost
	deaf    bool           // what the server sends is lost
	dead    bool           // for good; what was sent before arrives
	loses   *regexp.Regexp // of what the process sends; nil: nothing
	tear    int            // the process dies when it has sent so many bytes more; 0: it does not
	conns   []*linkConn
}

func newLink(dial func() (net.Conn, error), latency time.Duration) *link {
	l := &link{dial: dial, usual: latency, latency: latency}
	l.changed = sync.NewCond(&l.mu)
	return l
}

func (l *link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.changed.Broadcast()
}

// die ends the process: nothing more of it reaches the server.
func (l *link) die() {
	l.set(func() {
		if l.asleep { // what it seems to have sent meanwhile, it would have sent later
			l.lose()
		}
		l.dead = true
	})
}

// drop breaks the connections, with all that is on its way; the client connects again.
func (l *link) drop() {
	l.set(func() { l.lose() })
}

func (l *link) lose() {
	for _, c := range l.conns {
		c.closed, c.in, c.out = true, nil, nil
	}
	l.conns = nil
}

// sleep suspends the process for a while.
func (l *link) sleep(d time.Duration) {
	l.set(func() { l.asleep = true })
	time.AfterFunc(d, func() { l.set(func() { l.asleep = false }) })
}

// awake waits until the process is not suspended, and reports whether it is alive.
func (l *link) awake() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.asleep && !l.dead {
		l.changed.Wait()
	}
	return !l.dead
}

func (l *link) asleepNow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asleep
}

func (l *link) latencyNow() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latency
}

func (l *link) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// InProcessConn implements nats.InProcessConnProvider.
func (l *link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	down := l.dead || l.deaf || l.asleep
	l.mu.Unlock()
	if down {
		return nil, errNoLink
	}
	inner, err := l.dial()
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: inner, link: l}
	l.set(func() { l.conns = append(l.conns, c) })
	go c.pumpIn()
	go c.pumpOut()
	return c, nil
}

// linkConn is one connection over a link, with a queue for each direction. All is guarded by link.mu.
type linkConn struct {
	net.Conn
	link    *link
	in, out wire
	inErr   error
	closed  bool
	// greeted says that client and server have shaken hands. Until then everything passes at once: the client holds its
	// lock while it waits for the server's greeting.
	greeted bool
}

func (c *linkConn) latency() time.Duration {
	if !c.greeted {
		return 0
	}
	return c.link.latency
}

// held reports whether nothing passes at the moment.
func (c *linkConn) held() bool { return c.greeted && c.link.asleep && !c.link.dead }

// wire holds the parcels in flight in one direction.
type wire []parcel

type parcel struct {
	due  time.Time
	data []byte
}

func (w *wire) send(data []byte, latency time.Duration) {
	due := time.Now().Add(latency)
	if n := len(*w); n > 0 && (*w)[n-1].due.After(due) {
		due = (*w)[n-1].due
	}
	*w = append(*w, parcel{due, bytes.Clone(data)})
}

// pumpIn moves what the server sends.
func (c *linkConn) pumpIn() {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Conn.Read(buf)
		data := buf[:n]
		if c.link.version != "" {
			data = serverVersion.ReplaceAll(data, []byte("${1}"+c.link.version))
		}
		c.link.set(func() {
			if n > 0 && (!c.greeted || !c.link.deaf) {
				c.in.send(data, c.latency())
				c.greeted = c.greeted || bytes.HasPrefix(data, []byte("PONG"))
			}
			c.inErr = err
		})
		if err != nil {
			return
		}
	}
}

// pumpOut moves what the client has sent.
func (c *linkConn) pumpOut() {
	l := c.link
	defer func() { _ = c.Conn.Close() }()
	for {
		l.mu.Lock()
		for !c.closed && (c.held() || len(c.out) == 0 && !l.dead) {
			l.changed.Wait()
		}
		if len(c.out) == 0 {
			l.mu.Unlock()
			return
		}
		next := c.out[0]
		c.out = c.out[1:]
		l.mu.Unlock()
		time.Sleep(time.Until(next.due))
		if _, err := c.Conn.Write(next.data); err != nil {
			return
		}
	}
}

func (c *linkConn) Read(p []byte) (int, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case c.closed || l.dead:
			return 0, io.ErrClosedPipe
		case c.held():
		case len(c.in) > 0:
			next := &c.in[0]
			if wait := time.Until(next.due); wait > 0 {
				l.mu.Unlock()
				time.Sleep(wait)
				l.mu.Lock()
				continue
			}
			n := copy(p, next.data)
			if next.data = next.data[n:]; len(next.data) == 0 {
				c.in = c.in[1:]
			}
			return n, nil
		case c.inErr != nil:
			return 0, c.inErr
		}
		l.changed.Wait()
	}
}

func (c *linkConn) Write(p []byte) (int, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed || l.dead || c.inErr != nil {
		return 0, io.ErrClosedPipe
	}
	all := len(p)
	if l.loses != nil {
		p = l.loses.ReplaceAll(p, nil)
	}
	n := len(p)
	if l.tear > 0 {
		n = min(n, l.tear)
		l.tear -= n
		l.dead = l.tear == 0
	}
	c.out.send(p[:n], c.latency())
	l.changed.Broadcast()
	return all, nil
}

func (c *linkConn) Close() error {
	c.link.set(func() { c.closed = true })
	return nil
}

// A deadline would be one of the pipe behind the queues.
func (c *linkConn) SetDeadline(time.Time) error      { return nil }
func (c *linkConn) SetReadDeadline(time.Time) error  { return nil }
func (c *linkConn) SetWriteDeadline(time.Time) error { return nil }
