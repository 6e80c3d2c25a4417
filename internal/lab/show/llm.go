package show

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// llm is the LLM of the show, which can go down.
type llm struct {
	*llmtest.Server
	url  string
	down atomic.Bool // it cuts every call

	http *http.Server
}

// startLLM serves an LLM on a free port of the loopback interface. It admits so many
// calls a second, and takes about a second for each.
func startLLM(rate float64) (*llm, error) {
	l := &llm{}
	var err error
	l.Server, err = llmtest.New(llmtest.Config{Rate: rate, Burst: 5, Latency: time.Second, LatencySigma: 0.5, Seed: 1, Script: func(llmtest.Call) *llmtest.Step {
		if l.down.Load() {
			return &llmtest.Step{Trouble: llmtest.Reset}
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		return nil, err
	}
	l.url, l.http = "http://"+listener.Addr().String()+"/v1", &http.Server{Handler: l.Server, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = l.http.Serve(listener) }() // ends with close
	return l, nil
}

func (l *llm) close() { _ = l.http.Close() }
