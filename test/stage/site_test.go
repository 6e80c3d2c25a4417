// Package stage_test runs whole stages, with the wiring that ships, in virtual time: a real JetStream server inside the
// process, a scripted LLM over real HTTP on pipes, and app.Run between them. The tests check order, delivery and audit
// from the streams alone, as a user would. Three of them are simulators, whose processes die at drawn steps: of a stage,
// of a chain of stages, and of the batch lane against the mock's Batch APIs.
package stage_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/cmd/stage/cli"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// beTheProgram is the environment variable that makes the test binary run as the stage program.
const beTheProgram = "TEST_BINARY_IS_STAGE"

func TestMain(m *testing.M) {
	if os.Getenv(beTheProgram) != "" {
		os.Exit(cli.Main(context.Background(), cli.OSEnv()))
	}
	stagetest.Wait()
	ats.Register() // the server's clock must tick outside the bubbles, or virtual time stands still
	os.Exit(runTests(m))
}

// shared is a directory for what many tests need and is costly to make.
var shared string

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stage-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	shared = dir
	return m.Run()
}

// apiKey must appear nowhere but in the requests to the LLM.
const apiKey = "sk-this-key-must-be-found-nowhere"

// patience is how long a test waits, in virtual time.
const patience = 6 * time.Hour

// deps are the external dependencies of a replica.
type deps = stage.Deps

// vars are environment variables.
type vars map[string]string

// site is one NATS server and one LLM, and the replicas of a stage that run against them, all in one bubble.
type site struct {
	t    *testing.T
	srv  *stagetest.NATS
	nc   *nats.Conn
	js   jetstream.JetStream
	llm  *llmtest.Server
	pipe *llmtest.PipeListener
	open sync.Map // connections to the LLM: net.Conn
	tap  *tap
	logs *stagetest.Buffer
	runs int // replicas so far
	// crashed: a replica was killed.
	crashed bool
}

// newSite starts the servers. It must be called inside the bubble.
func newSite(t *testing.T, behaviour llmtest.Config) *site {
	t.Helper()
	n := stagetest.StartNATS(t)
	s := &site{t: t, srv: n, nc: n.NC, js: n.JS, logs: &stagetest.Buffer{Shown: true}}
	var err error
	if s.llm, err = llmtest.New(behaviour); err != nil {
		t.Fatal(err)
	}
	s.serveLLM()
	return s
}

// serveLLM puts the tap between the pipe and the LLM.
func (s *site) serveLLM() {
	s.tap = &tap{next: s.llm}
	s.pipe = llmtest.NewPipeListener()
	srv := &http.Server{Handler: s.tap, ReadHeaderTimeout: time.Minute, ConnState: func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.open.Store(conn, nil)
		case http.StateClosed, http.StateHijacked:
			s.open.Delete(conn)
		case http.StateActive, http.StateIdle:
		}
	}}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(s.pipe) })
	s.t.Cleanup(func() {
		_ = srv.Close()
		served.Wait()
	})
}

// cutLLM closes all connections to the LLM, as if the LLM had closed them.
func (s *site) cutLLM() {
	s.open.Range(func(conn, _ any) bool {
		_ = conn.(net.Conn).Close()
		return true
	})
}

// config loads the configuration as the program does, from variables.
func (s *site) config(changes vars) *config.Config {
	s.t.Helper()
	environ := vars{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_BASE_URL": s.pipe.URL(), "STAGE_LLM_API_KEY": apiKey, "STAGE_LLM_MODEL": "small",
		"STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_POOL_SIZE": "10", "STAGE_STREAM_STORAGE": "memory",
	}
	maps.Copy(environ, changes)
	cfg := stagetest.Value(stagetest.Source(environ).Load(s.t.Context(), config.NeedCalls))(s.t)
	return cfg
}

// replica is one process of the stage.
type replica struct {
	site   *site
	t      *testing.T
	nc     *nats.Conn
	soft   context.CancelFunc
	hard   context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // of Run, once done is closed
	client *http.Client  // of its HTTP server
	reload chan os.Signal
}

// start starts a replica with the given changes to the site's configuration. It is stopped hard at the end of the test
// if it still runs.
func (s *site) start(changes vars) *replica {
	s.t.Helper()
	return s.startWith(changes, func(*deps) {})
}

func (s *site) startWith(changes vars, adapt func(*deps)) *replica {
	s.t.Helper()
	cfg := s.config(changes)
	s.runs++
	pages := llmtest.NewPipeListener()
	r := &replica{site: s, t: s.t, nc: s.srv.Connect(), done: make(chan struct{}), reload: make(chan os.Signal, 1)}
	transport := &http.Transport{DialContext: pages.DialContext, DisableKeepAlives: true}
	r.client = &http.Client{Transport: transport}
	d := deps{
		NATS:     func() (*nats.Conn, error) { return r.nc, nil },
		DialLLM:  s.pipe.DialContext,
		Listener: pages,
		Reloads:  r.reload,
		Logger:   slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With(slog.Int("replica", s.runs)),
	}
	adapt(&d)
	soft, stop := context.WithCancel(s.t.Context())
	hard, kill := context.WithCancel(context.WithoutCancel(s.t.Context()))
	r.soft, r.hard = stop, kill
	go func() {
		defer close(r.done)
		r.err = stage.Run(soft, hard, cfg, d)
	}()
	s.t.Cleanup(func() {
		kill()
		stop()
		<-r.done
	})
	return r
}

// wait waits until the replica has ended by itself, and returns what Run returned.
func (r *replica) wait() error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		r.t.Fatal("the stage did not end")
		return nil
	}
}

// stop drains the replica, as SIGTERM does, and returns how long that took.
func (r *replica) stop() time.Duration {
	r.t.Helper()
	began := time.Now()
	r.soft()
	if err := r.wait(); err != nil {
		r.t.Errorf("run: %v", err)
	}
	return time.Since(began)
}

// kill ends the replica as a crash would: nothing more of it reaches the server.
func (r *replica) kill() {
	r.site.crashed = true
	r.nc.Close()
	r.hard()
	r.soft()
}

// get reads a page of the replica.
func (r *replica) get(path string) (status int, body string) {
	r.t.Helper()
	req := stagetest.Value(http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://localhost"+path, nil))(r.t)
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text := stagetest.Value(io.ReadAll(resp.Body))(r.t)
	return resp.StatusCode, string(text)
}

// until waits in virtual time until a condition holds, and polls less often the longer that takes.
func (s *site) until(what string, is func() bool) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(max(50*time.Millisecond, time.Since(began)/20)) {
		if is() {
			return
		}
	}
	s.t.Fatalf("%s: not within %v", what, patience)
}

// publish stores one row.
func (s *site) publish(body string, header nats.Header) (seq uint64) {
	s.t.Helper()
	ack, err := s.js.PublishMsg(s.t.Context(), &nats.Msg{Subject: "rows.a", Data: []byte(body), Header: header})
	if err != nil {
		s.t.Fatal(err)
	}
	return ack.Sequence
}

// load stores n rows, {"n":1} and so on.
func (s *site) load(n int) {
	s.t.Helper()
	for i := range n {
		s.publish(`{"n":`+strconv.Itoa(i+1)+`}`, nil)
	}
}

// newStream creates a stream.
func (s *site) newStream(name, subject string) {
	s.t.Helper()
	s.configured(jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
}

// configured creates a stream from cfg.
func (s *site) configured(cfg jetstream.StreamConfig) {
	s.t.Helper()
	cfg.Storage = jetstream.MemoryStorage
	stagetest.Value(s.js.CreateStream(s.t.Context(), cfg))(s.t)
}

// newInput creates the input stream, for tests that load rows before any stage runs.
func (s *site) newInput() {
	s.t.Helper()
	s.newStream("ROWS", "rows.>")
}

// loaded returns a site whose input holds n rows.
func loaded(t *testing.T, n int, behaviour llmtest.Config) *site {
	t.Helper()
	s := newSite(t, behaviour)
	s.newInput()
	s.load(n)
	return s
}

// await waits until n results are stored.
func (s *site) await(n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d results", n), func() bool { return s.stored() >= n })
}

// stored returns the number of results.
func (s *site) stored() int {
	s.t.Helper()
	return stagetest.Stored(s.t, s.js, "RESULTS", "results.stage.0.rows")
}

type message = stagetest.Message

// read returns the messages of a stream that match a filter, in their order.
func (s *site) read(stream, filter string) []message {
	s.t.Helper()
	return stagetest.Read(s.t, s.js, stream, filter)
}

// streamNames lists the streams of the site.
func (s *site) streamNames() []string {
	s.t.Helper()
	var names []string
	list := s.js.StreamNames(s.t.Context())
	for name := range list.Name() {
		names = append(names, name)
	}
	stagetest.Must(s.t, list.Err())
	slices.Sort(names)
	return names
}

// one returns the only element of a list.
func one[T any](t *testing.T, what string, list []T) T {
	t.Helper()
	if len(list) != 1 {
		t.Fatalf("%d %s, want 1", len(list), what)
	}
	return list[0]
}

// oneAtATime serializes the calls of a script that keeps state.
func oneAtATime(script func(llmtest.Call) *llmtest.Step) func(llmtest.Call) *llmtest.Step {
	var mu sync.Mutex
	return func(c llmtest.Call) *llmtest.Step {
		mu.Lock()
		defer mu.Unlock()
		return script(c)
	}
}
