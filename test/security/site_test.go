// Package security_test runs whole stages, with the wiring that ships, against NATS servers that are guarded in every
// way that the stage supports: over real sockets on the loopback interface, with certificates and credentials that each
// test makes.
//
// Other tests, in virtual time, take single permissions away, and send what strangers may send: rows whose headers,
// subjects and bodies no ordinary client would write, but which the server stores.
package security_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// patience bounds what a test waits for, far above what a loaded machine needs.
const patience = 2 * time.Minute

// vars are environment variables.
type vars = map[string]string

// options returns those of a server on a free port of the loopback interface.
func options(t *testing.T) *server.Options {
	t.Helper()
	return &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: stagetest.Dir(t), NoLog: true, NoSigs: true}
}

// serve runs a server until the end of the test.
func serve(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	srv := stagetest.Value(server.NewServer(opts))(t)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(patience) {
		t.Fatal("the server is not ready")
	}
	return srv
}

// admin connects as an administrator.
func admin(t *testing.T, srv *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc := stagetest.Value(nats.Connect(srv.ClientURL(), opts...))(t)
	t.Cleanup(nc.Close)
	return nc
}

// newLLM serves the built-in LLM over HTTP and returns the variables of a stage that calls it.
func newLLM(t *testing.T, cfg llmtest.Config) vars {
	t.Helper()
	handler := stagetest.Value(llmtest.New(cfg))(t)
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return vars{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_BASE_URL": srv.URL + "/v1", "STAGE_LLM_API_KEY": "key-of-the-llm", "STAGE_LLM_MODEL": "small",
		"STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_STREAM_STORAGE": "memory",
	}
}

// with returns the variables with changes.
func with(v vars, changes ...vars) vars {
	v = maps.Clone(v)
	for _, c := range changes {
		maps.Copy(v, c)
	}
	return v
}

// process is one process of the stage.
type process struct {
	t    *testing.T
	logs *journal
	page string // address of its HTTP server
	soft context.CancelFunc
	hard context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error
}

// run starts a stage with an environment. It is stopped at once at the end of the test if it still runs.
func run(t *testing.T, environ vars) *process {
	t.Helper()
	cfg := stagetest.Value(stagetest.Source(environ).Load(t.Context(), config.NeedCalls))(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		t.Fatal(err)
	}
	s := &process{t: t, logs: newJournal(), page: "http://" + listener.Addr().String(), done: make(chan struct{})}
	hard, kill := context.WithCancel(context.WithoutCancel(t.Context()))
	soft, stop := context.WithCancel(hard)
	s.soft, s.hard = stop, kill
	go func() {
		defer close(s.done)
		s.err = stage.Run(soft, hard, cfg, stage.Deps{MockLLM: llmtest.Config{}.Start, Listener: listener, Logger: slog.New(slog.NewTextHandler(s.logs, nil))})
	}()
	t.Cleanup(func() {
		kill()
		<-s.done
	})
	return s
}

// ended waits until the stage has ended by itself, and returns what Run returned.
func (s *process) ended() error {
	s.t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(patience):
		s.t.Fatal("the stage did not end")
		return nil
	}
}

// stop drains the stage, as SIGTERM does.
func (s *process) stop() {
	s.t.Helper()
	s.soft()
	if err := s.ended(); err != nil {
		s.t.Errorf("run: %v", err)
	}
}

// ready reads /readyz.
func (s *process) ready() (ok bool, why string) {
	s.t.Helper()
	return readyBy(s.t, http.DefaultClient, s.page)
}

func readyBy(t *testing.T, client *http.Client, page string) (ok bool, why string) {
	t.Helper()
	req := stagetest.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, page+"/readyz", nil))(t)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	text := stagetest.Value(io.ReadAll(resp.Body))(t)
	return resp.StatusCode == http.StatusOK, string(text)
}

// journal is a log whose lines can be waited for.
type journal struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{} // closed and replaced at each write
}

func newJournal() *journal { return &journal{written: make(chan struct{})} }

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	close(j.written)
	j.written = make(chan struct{})
	if testing.Verbose() {
		_, _ = os.Stderr.Write(p)
	}
	return j.text.Write(p)
}

func (j *journal) read() (text string, next <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String(), j.written
}

func holdsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// rows publishes rows and waits until as many results are stored.
type rows struct {
	t       *testing.T
	js      jetstream.JetStream
	results *nats.Subscription
	sent    int
}

// newRows creates the input stream and listens for results.
func newRows(t *testing.T, nc *nats.Conn, storage jetstream.StorageType) *rows {
	t.Helper()
	r := &rows{t: t}
	var err error
	if r.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Storage: storage}); err != nil {
		t.Fatal(err)
	}
	if r.results, err = nc.SubscribeSync("results.stage.*.rows"); err != nil {
		t.Fatal(err)
	}
	return r
}

// load publishes n rows.
func (r *rows) load(n int) {
	r.t.Helper()
	for range n {
		r.sent++
		stagetest.Value(r.js.Publish(r.t.Context(), "rows.a", fmt.Appendf(nil, `{"n":%d}`, r.sent)))(r.t)
	}
}

// through publishes n rows and waits for their results.
func (r *rows) through(n int) {
	r.t.Helper()
	r.load(n)
	r.await(n)
}

// await waits for n further results.
func (r *rows) await(n int) {
	r.t.Helper()
	for range n {
		if _, err := r.results.NextMsg(patience); err != nil {
			r.t.Fatalf("a result: %v", err)
		}
	}
}
