package dashboard

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

// closeListener reports on closed when a connection that it has accepted is closed by the server.
type closeListener struct {
	*llmtest.PipeListener
	closed chan time.Time
}

func (l *closeListener) Accept() (net.Conn, error) {
	c, err := l.PipeListener.Accept()
	if err != nil {
		return nil, err
	}
	return &closingConn{Conn: c, closed: l.closed}, nil
}

type closingConn struct {
	net.Conn
	closed chan time.Time
}

func (c *closingConn) Close() error {
	select {
	case c.closed <- time.Now():
	default: // closed before
	}
	return c.Conn.Close()
}

// servePages serves the pages of a stage over pipes in a bubble. end stops the server,
// and returns how long that took.
func servePages(t *testing.T) (l *closeListener, end func() time.Duration) {
	t.Helper()
	l = &closeListener{PipeListener: llmtest.NewPipeListener(), closed: make(chan time.Time, 1)}
	handlers := testHandlers()
	pages := NewLive(func() status.Report { return status.Report{Time: time.Now()} }, nobody, status.NewHistory(time.Now()))
	handlers.Events = pages
	server := NewServer(l, config.HTTPConfig{}, handlers, slog.New(slog.DiscardHandler))
	living, endLive := context.WithCancel(t.Context())
	serving, endServer := context.WithCancel(t.Context())
	lived, served := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(lived)
		pages.Run(living)
	}()
	go func() { served <- server.Run(serving, context.WithoutCancel(t.Context())) }()
	return l, func() time.Duration {
		start := time.Now()
		endLive()
		<-lived
		endServer()
		if err := <-served; err != nil {
			t.Error(err)
		}
		return time.Since(start)
	}
}

// Each client takes as long as it likes; the server's patience has an end.
func TestEachConnectionOfTheHTTPServerEnds(t *testing.T) {
	const events = "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
	tests := []struct {
		name  string
		send  string
		drip  bool // a byte each second after that
		read  bool // all that comes
		after time.Duration
		want  string // in what is read
	}{
		{"no request", "", false, true, ReadTimeout, ""},
		{"slow header", "GET / HTTP/1.1\r\nHost: localhost\r\nX: ", true, true, ReadTimeout, ""},
		{"slow body", "POST /api/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", true, true, ReadTimeout, "404 Not Found"},
		{"large header", "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", maxHeaderBytes+4096), false, true, 0, "431 Request Header"},
		{"idle after a request", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", false, true, IdleTimeout, "200 OK"},
		{"page that is not read", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false, false, writeTimeout, ""},
		{"events that are not read", events, false, false, watcherPatience, ""},
		{"events", events, false, true, watcherLifetime + IdleTimeout, "event: status"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, end := servePages(t)
				start := time.Now()
				conn := stagetest.Value(l.DialContext(t.Context(), "tcp", ""))(t)
				written := make(chan struct{})
				go func() {
					defer close(written)
					_, err := io.WriteString(conn, tt.send)
					for err == nil && tt.drip {
						time.Sleep(time.Second) // virtual
						_, err = io.WriteString(conn, "x")
					}
				}()
				var got []byte
				if tt.read {
					_ = conn.SetReadDeadline(start.Add(2 * watcherLifetime)) // so that a failure ends
					got, _ = io.ReadAll(conn)
				}
				select {
				case at := <-l.closed:
					if took := at.Sub(start); took < tt.after || took > tt.after+time.Second { // the server lingers for 0.5 s
						t.Errorf("closed after %v, want %v", took, tt.after)
					}
				case <-time.After(2 * watcherLifetime):
					t.Errorf("not closed, want it after %v", tt.after)
				}
				if !strings.Contains(string(got), tt.want) {
					t.Errorf("got %.200q, want %q", got, tt.want)
				}
				_ = conn.Close()
				<-written
				end()
			})
		})
	}
}

// A page that watches does not hold up a stop, whether it reads or not.
func TestEventStreamsEndWithTheProcess(t *testing.T) {
	for name, most := range map[string]time.Duration{"read": 0, "not read": closeGrace} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, end := servePages(t)
				conn := stagetest.Value(l.DialContext(t.Context(), "tcp", ""))(t)
				stagetest.Value(io.WriteString(conn, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
				got := make(chan string, 1)
				if name == "read" {
					go func() {
						text, _ := io.ReadAll(conn)
						got <- string(text)
					}()
				}
				synctest.Wait()
				if took := end(); took > most+time.Second { // it looks for the end of its connections now and then
					t.Errorf("the server ended after %v, want %v", took, most)
				}
				if name == "read" {
					if text := <-got; !strings.Contains(text, "event: end") {
						t.Errorf("got %q, want the event end", text)
					}
				}
				_ = conn.Close()
			})
		})
	}
}
