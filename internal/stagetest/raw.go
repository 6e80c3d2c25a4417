package stagetest

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// PublishRaw is [PublishRaw] to this server.
func (n *NATS) PublishRaw(subject, header, body string) {
	n.T.Helper()
	PublishRaw(n.T, n.Server, subject, header, body)
}

// PublishRaw stores a message whose headers are any bytes, from the line "NATS/1.0" on.
// The client library refuses many that a server takes, and that clients of other
// languages send. It waits for the stream's answer: a server answers a PING before a
// stream has stored what came before it.
func PublishRaw(tb testing.TB, to nats.InProcessConnProvider, subject, header, body string) {
	tb.Helper()
	conn, err := to.InProcessConn()
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sent := make(chan error, 1)
	go func() {
		_, err := fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB answer 1\r\nHPUB %s answer %d %d\r\n%s%s\r\n", subject, len(header), len(header)+len(body), header, body)
		sent <- err
	}()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, `{"stream":`):
			if err := <-sent; err != nil {
				tb.Fatal(err)
			}
			return
		case strings.HasPrefix(line, `{"error":`), strings.HasPrefix(line, "NATS/1.0 503"), strings.HasPrefix(line, "-"):
			tb.Fatalf("publish on %s: %s", subject, line)
		}
	}
	tb.Fatalf("publish on %s: the server has closed the connection", subject)
}
