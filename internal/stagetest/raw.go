package stagetest

import (
	"bufio"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

// PublishRaw is [PublishRaw] to this server.
func (n *NATS) PublishRaw(subject, header, body string) {
	n.T.Helper()
	PublishRaw(n.T, n.Server, subject, header, body)
}

// PublishRaw publishes a message whose headers are any bytes, from the line "NATS/1.0" on. The client library refuses
// many that a server takes, and that clients of other languages send.
func PublishRaw(tb testing.TB, to nats.InProcessConnProvider, subject, header, body string) {
	tb.Helper()
	conn, err := to.InProcessConn()
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sent := make(chan error, 1)
	go func() {
		_, err := fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"headers\":true}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n", subject, len(header), len(header)+len(body), header, body)
		sent <- err
	}()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch line := lines.Text(); {
		case line == "PONG":
			if err := <-sent; err != nil {
				tb.Fatal(err)
			}
			return
		case len(line) > 0 && line[0] == '-':
			tb.Fatalf("publish on %s: %s", subject, line)
		}
	}
	tb.Fatalf("publish on %s: the server has closed the connection", subject)
}
