package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Marks in a prompt: its call is slow, or refused, whenever it is made.
const (
	slowMark    = "slow"
	refusedMark = "refused"
)

// llmAnswer is the reply to every call.
const llmAnswer = `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"An answer of some words, as models give them."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":10,"total_tokens":30}}`

// The replies, head and all.
var (
	llmReply   = httpReply("200 OK", llmAnswer)
	llmRefusal = httpReply("429 Too Many Requests", `{"error":{"message":"too many requests","type":"rate_limit_error"}}`)
)

func httpReply(status, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// llm is the LLM: it answers at once, or after latency, the same to all.
//
// It shares two cores with what is measured, and net/http's server would take as much CPU
// for a call as its client: so it is a goroutine for each connection that reads requests
// with a Content-Length, ignores the rest, and writes one prepared reply. That costs a
// call hardly more than its two system calls.
type llm struct {
	latency, slow time.Duration // of a call, and of one whose prompt has slowMark; 0 means the marks mean nothing
	refuses       bool          // refusedMark means something
	text          time.Duration // that each text adds
	dimensions    int           // of vectors; 0 means that calls are no embeddings
}

// serve serves until ctx ends, at the address that it prints.
func (l llm) serve(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	fmt.Printf("http://%s/v1\n", listener.Addr())
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() {
			defer conn.Close()    //nolint:errcheck // its reader is gone
			_ = l.serveConn(conn) // however a client ends
		}()
	}
}

// serveConn answers the requests of one connection until the client closes it.
func (l llm) serveConn(conn io.ReadWriter) error {
	r := bufio.NewReader(conn)
	var body []byte
	vectors := make(map[int][]byte) // replies by how many vectors they have
	for {
		length, err := requestHead(r)
		if err != nil {
			return err
		}
		wait, reply := l.latency, llmReply
		if l.slow > 0 || l.refuses || l.dimensions > 0 {
			if cap(body) < length {
				body = make([]byte, length)
			}
			if _, err := io.ReadFull(r, body[:length]); err != nil {
				return err
			}
			if l.slow > 0 && bytes.Contains(body[:length], []byte(slowMark)) {
				wait = l.slow
			}
			if l.refuses && bytes.Contains(body[:length], []byte(refusedMark)) {
				wait, reply = 0, llmRefusal
			}
			if n := texts(body[:length]); l.dimensions > 0 {
				if vectors[n] == nil {
					vectors[n] = vectorsReply(n, l.dimensions)
				}
				wait, reply = l.latency+time.Duration(n)*l.text, vectors[n]
			}
		} else if _, err := r.Discard(length); err != nil {
			return err
		}
		if wait > 0 {
			time.Sleep(wait)
		}
		if _, err := conn.Write(reply); err != nil {
			return err
		}
	}
}

// texts counts the texts of a request of embeddings. None of them has quotes.
func texts(body []byte) int {
	_, list, _ := bytes.Cut(body, []byte(`"input":[`))
	list, _, _ = bytes.Cut(list, []byte("]"))
	return bytes.Count(list, []byte(`","`)) + 1
}

// vectorsReply is a reply with so many vectors, which are all alike.
func vectorsReply(n, dimensions int) []byte {
	vector := strings.Repeat("-0.012345678,", dimensions-1) + "0.5"
	var list []byte
	for i := range n {
		list = fmt.Appendf(list, `,{"object":"embedding","index":%d,"embedding":[%s]}`, i, vector)
	}
	return httpReply("200 OK", fmt.Sprintf(`{"object":"list","data":[%s],"model":"m","usage":{"prompt_tokens":%d,"total_tokens":%d}}`, list[1:], 50*n, 50*n))
}

var contentLength = []byte("content-length:")

// requestHead reads up to the empty line that ends a request's head and returns the
// length of its body.
func requestHead(r *bufio.Reader) (length int, err error) {
	length = -1
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if n := len(contentLength); len(line) > n && bytes.EqualFold(line[:n], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[n:]))); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 {
		return 0, errors.New("a request without Content-Length")
	}
	return length, nil
}
