// Package process runs a stage in virtual time as a process of its own, which a test has
// die at any byte that it sends.
package process

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// Process is one process of a stage. Make it with [Start].
type Process struct {
	// Wire is its network. It has died if that is dead.
	Wire *stagetest.Wire
	// Done is closed when it has ended. Err, from then on, is why.
	Done chan struct{}
	Err  error
	// Soft stops it as SIGTERM does.
	Soft context.CancelFunc
	// DialPages connects to its HTTP server.
	DialPages func(ctx context.Context, network, address string) (net.Conn, error)

	hard context.CancelFunc
	nc   *nats.Conn
}

// Start starts a process, which ends with the test. sees is [stagetest.Wire]'s Sees, and
// llm returns the LLM as the process sees it while it lives. Connections and listener of
// deps are set here.
func Start(t *testing.T, broker *stagetest.Broker, cfg *config.Config, sees func(data []byte) int, llm func(*Process) http.Handler, deps stage.Deps) *Process {
	t.Helper()
	calls, pages := llmtest.NewPipeListener(), llmtest.NewPipeListener()
	p := &Process{Done: make(chan struct{}), DialPages: pages.DialContext}
	p.Wire = &stagetest.Wire{Broker: broker, Sees: sees, Dies: p.end}
	p.nc = broker.Connect(p.Wire)
	next := llm(p)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.Wire.Dead() {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(calls)
	}()
	soft, stop := context.WithCancel(t.Context())
	hard, kill := context.WithCancel(context.WithoutCancel(t.Context()))
	p.Soft, p.hard = stop, kill
	deps.NATS, deps.DialLLM, deps.Listener = func() (*nats.Conn, error) { return p.nc, nil }, calls.DialContext, pages
	go func() {
		defer close(p.Done)
		p.Err = stage.Run(soft, hard, cfg, deps)
	}()
	t.Cleanup(func() {
		kill()
		stop()
		<-p.Done
		_ = srv.Close()
		<-served
	})
	return p
}

// end ends what runs of a process that is dead. It does not block.
func (p *Process) end() {
	p.hard()
	p.Soft()
	go p.nc.Close()
}

// Die ends the process as a crash would: nothing more of it reaches anybody.
func (p *Process) Die() {
	p.Wire.Die()
	p.end()
}

// Over reports whether the process has ended or is dead.
func (p *Process) Over() bool {
	select {
	case <-p.Done:
		return true
	default:
		return p.Wire.Dead()
	}
}
