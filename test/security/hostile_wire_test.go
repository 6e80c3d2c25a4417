package security_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// stranger publishes over a connection of its own, byte for byte: the client library refuses to send much of what the
// server takes.
type stranger struct {
	t    *testing.T
	dial func() (net.Conn, error)
	conn net.Conn
	in   *bufio.Reader
}

func (s *stranger) connect() {
	s.t.Helper()
	var err error
	if s.conn, err = s.dial(); err != nil {
		s.t.Fatal(err)
	}
	s.in = bufio.NewReader(s.conn)
	s.line() // INFO
	s.write(`CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}` + "\r\nSUB answers 1\r\n")
}

func (s *stranger) write(text string) {
	if _, err := io.WriteString(s.conn, text); err != nil {
		s.t.Logf("the server has closed the connection: %v", err)
	}
}

func (s *stranger) line() string {
	line, err := s.in.ReadString('\n')
	if err != nil {
		return "-ERR " + err.Error()
	}
	return strings.TrimRight(line, "\r\n")
}

// publish sends a message and returns its sequence in the input stream; 0 and the reason where the server refuses it.
func (s *stranger) publish(m *message) (seq uint64, refused string) {
	s.t.Helper()
	if s.conn == nil {
		s.connect()
	}
	if m.header == "" {
		s.write(fmt.Sprintf("PUB %s answers %d\r\n%s\r\n", m.subject, len(m.body), m.body))
	} else {
		s.write(fmt.Sprintf("HPUB %s answers %d %d\r\n%s%s\r\n", m.subject, len(m.header), len(m.header)+len(m.body), m.header, m.body))
	}
	for {
		line := s.line()
		var sid string
		var size int
		switch {
		case strings.HasPrefix(line, "PING"):
			s.write("PONG\r\n")
		case strings.HasPrefix(line, "-ERR"): // and the connection is closed
			_ = s.conn.Close()
			s.conn = nil
			return 0, line
		case strings.HasPrefix(line, "MSG answers"):
			if _, err := fmt.Sscanf(line, "MSG answers %s %d", &sid, &size); err != nil {
				s.t.Fatalf("%q: %v", line, err)
			}
			body := make([]byte, size+2)
			stagetest.Value(io.ReadFull(s.in, body))(s.t)
			var ack struct {
				Seq       uint64 `json:"seq"`
				Duplicate bool   `json:"duplicate"`
				Error     *struct {
					Description string `json:"description"`
				} `json:"error"`
			}
			if err := json.Unmarshal(body, &ack); err != nil {
				s.t.Fatalf("%q: %v", body, err)
			}
			switch {
			case ack.Error != nil:
				return 0, ack.Error.Description
			case ack.Duplicate:
				return 0, "duplicate"
			}
			return ack.Seq, ""
		}
	}
}

func (s *stranger) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}
