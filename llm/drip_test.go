package llm_test

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
)

// dripAnswer is a whole answer, of 65 bytes.
const dripAnswer = `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`

// dripper is a client of a server that begins its first reply with start and goes on with more, again and again at the
// given interval, until the client hangs up, 1000 times at most. It answers later connections properly. written is how
// much of the first reply the client took.
func dripper(t *testing.T, start, more string, every time.Duration) (client *llm.Client, written *int) {
	t.Helper()
	pipe, ended := llmtest.NewPipeListener(), make(chan struct{})
	written = new(int)
	go func() {
		defer close(ended)
		conn, err := pipe.Accept()
		for err == nil {
			readRequest(conn)
			if next := start; next != "" {
				start = ""
				for i := 0; err == nil && i < 1000; i++ { // so that a client that never hangs up fails the test, not its time-out
					var n int
					n, err = io.WriteString(conn, next)
					*written += n
					next = more
					time.Sleep(every) // virtual
				}
			} else {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n"+dripAnswer)
			}
			_ = conn.Close()
			conn, err = pipe.Accept()
		}
	}()
	client = newClient(t, llm.Mock, llm.ProviderConfig{
		BaseURL: pipe.URL(), DialContext: pipe.DialContext, Timeout: 10500 * time.Millisecond,
	})
	t.Cleanup(func() {
		client.Close()
		_ = pipe.Close()
		<-ended
	})
	return client, written
}

// A server may send something each second and never end: it is the whole attempt that has a bound, not the silence
// between two bytes. Each reply lasts for ever here.
func TestSlowReplyEndsByTheTimeout(t *testing.T) {
	const (
		ok       = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
		chunked  = ok + "Transfer-Encoding: chunked\r\n\r\n"
		interim  = "HTTP/1.1 102 Processing\r\n\r\n"
		timedOut = "attempt timed out after 10.5s; "
	)
	tests := []struct {
		name        string
		start, more string
		status      int
		class       llm.Class
		text        string // in the error
	}{
		{"status line", "H", "T", 0, llm.Transient, timedOut + "the header of the reply was not complete"},
		{"header", ok + "X-Request-Id: ", "a", 0, llm.Transient, timedOut + "the header of the reply was not complete"},
		{"informational replies", interim, interim, 0, llm.Transient, timedOut + "the header of the reply was not complete"},
		{"body", ok + "Content-Length: 90000\r\n\r\n", "x", 200, llm.Transient, timedOut + "10 bytes of the reply had arrived"},
		{"body without a length", ok + "\r\n", " ", 200, llm.Transient, timedOut + "10 bytes of the reply had arrived"},
		{"chunks", chunked, "1\r\nx\r\n", 200, llm.Transient, timedOut + "10 bytes of the reply had arrived"},
		{"chunk extension", chunked + "1;", "e", 200, llm.Transient, timedOut + "0 bytes of the reply had arrived"},
		{"after the last chunk", chunked + "41\r\n" + dripAnswer + "\r\n0\r\n", "t", 200, llm.Transient, timedOut + "65 bytes of the reply had arrived"},
		{"body of a 429", "HTTP/1.1 429 Slow\r\nContent-Length: 90000\r\n\r\n", "x", 429, llm.Capacity, "xxxxxxxxxx"},
		{"body of a 400", "HTTP/1.1 400 Bad\r\nContent-Length: 90000\r\n\r\n", "x", 400, llm.Permanent, "xxxxxxxxxx"},
		{"body of a 500", "HTTP/1.1 500 Oh\r\nContent-Length: 90000\r\n\r\n", "x", 500, llm.Transient, "xxxxxxxxxx"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := dripper(t, tt.start, tt.more, time.Second)
				x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
				if x.Latency != 10500*time.Millisecond || x.Status != tt.status || !x.Sent {
					t.Errorf("ended after %v with status %d, sent %v; want the time-out, %d, true", x.Latency, x.Status, x.Sent, tt.status)
				}
				if e == nil || e.Class != tt.class || !strings.Contains(e.Error(), tt.text) {
					t.Fatalf("got %+v, want class %v and %q", e, tt.class, tt.text)
				}
				if e.Class == llm.Transient && e.Origin != llm.OfServer {
					t.Errorf("got origin %d, want the server", e.Origin)
				}
				// The connection is not used again: what still arrives on it is not the answer to another request.
				if x, e := ask(t.Context(), t, client, llm.Request{Prompt: "again"}); e != nil || x.Reply.Text != "hi" {
					t.Errorf("the next call: got %+v", e)
				}
			})
		})
	}
}

// A reply that never ends is bounded in bytes, whatever the time-out.
func TestEndlessHeaderIsBounded(t *testing.T) {
	line := "X-Padding: " + strings.Repeat("x", 1000) + "\r\n"
	for name, flood := range map[string][2]string{
		"header":                {"HTTP/1.1 200 OK\r\n", line},
		"one line":              {"HTTP/1.1 200 OK\r\nX-Padding: ", strings.Repeat("x", 1000)},
		"informational replies": {"HTTP/1.1 102 Processing\r\n" + line + "\r\n", "HTTP/1.1 102 Processing\r\n" + line + "\r\n"},
		"chunk extension":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", strings.Repeat("e", 1000)},
		"trailer":               {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", line},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, written := dripper(t, flood[0], flood[1], 0)
				x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
				if e == nil || e.Class != llm.Transient || e.Origin != llm.OfServer {
					t.Errorf("got %+v, want a transient error of the server", e)
				}
				synctest.Wait()
				if x.Latency != 0 || *written > 80<<10 {
					t.Errorf("%d bytes in %v, want less than 80 KiB at once: %v", *written, x.Latency, e)
				}
			})
		})
	}
}
