package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// slowMark in a prompt makes its call slow.
const slowMark = "slow"

// serveLLM is the LLM: it answers at once, or after latency, the same to all. It does as little as a server can, to weigh
// on the machine as little as it can.
func serveLLM(ctx context.Context, latency, slow time.Duration) error {
	answer := []byte(`{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"An answer of some words, as models give them."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":10,"total_tokens":30}}`)
	length := []string{strconv.Itoa(len(answer))}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		wait := latency
		if slow > 0 && bytes.Contains(body, []byte(slowMark)) {
			wait = slow
		}
		if wait > 0 {
			time.Sleep(wait)
		}
		w.Header()["Content-Length"] = length
		w.Header()["Content-Type"] = []string{"application/json"}
		_, _ = w.Write(answer)
	})}
	fmt.Printf("http://%s/v1\n", listener.Addr())
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
