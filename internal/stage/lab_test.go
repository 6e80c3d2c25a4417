package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// lab is a NATS server and some LLMs that a stage in the same bubble works with.
type lab struct {
	t     *testing.T
	srv   *stagetest.NATS
	dir   string
	nc    *nats.Conn
	js    jetstream.JetStream
	pipes map[string]*llmtest.PipeListener // by host
	llms  map[string]*llmtest.Server
	vars  map[string]string
	rows  bool // the stream of the rows was created
	logs  stagetest.Buffer
	log   *slog.Logger // of the stages; nil: everything, as text
	down  atomic.Bool  // no LLM listens

	connect func() *natsconn.Conn // of a stage; nil: straight to the server
	prepare func(*Stage)          // is called with each stage before it runs; nil: nothing is
}

// newLab starts a server with the streams of a stage, and the LLM http://first.test/v1 that the stage calls.
func newLab(t *testing.T, first llmtest.Config, vars map[string]string) *lab {
	t.Helper()
	n := stagetest.StartNATS(t)
	l := &lab{t: t, srv: n, dir: n.Dir, nc: n.NC, js: n.JS, pipes: map[string]*llmtest.PipeListener{}, llms: map[string]*llmtest.Server{}}
	l.vars = map[string]string{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_MODEL": "large", "STAGE_LLM_BASE_URL": "http://first.test/v1",
		"STAGE_LLM_API_KEY": "sk-first-secret", "STAGE_TEMPLATE": "{{ row.q }}", "STAGE_POOL_SIZE": "8", "STAGE_RETRY_BASE_DELAY": "10ms",
	}
	maps.Copy(l.vars, vars)
	l.serve("first.test", first)
	return l
}

// serve adds an LLM at http://host/v1.
func (l *lab) serve(host string, cfg llmtest.Config) {
	l.t.Helper()
	srv := stagetest.Value(llmtest.New(cfg))(l.t)
	pipe, stop := srv.Pipe()
	l.t.Cleanup(stop)
	l.llms[host], l.pipes[host] = srv, pipe
}

func (l *lab) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if l.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	pipe := l.pipes[host]
	if pipe == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return pipe.DialContext(ctx, network, address)
}

// load publishes rows with these questions.
func (l *lab) load(questions ...string) {
	l.t.Helper()
	for _, q := range questions {
		l.publish(&nats.Msg{Data: fmt.Appendf(nil, `{"q":%q}`, q)})
	}
}

func (l *lab) publish(m *nats.Msg) {
	l.t.Helper()
	if !l.rows {
		cfg := jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}
		_, err := l.js.CreateOrUpdateStream(l.t.Context(), cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // a stage that starts has created it in between
			_, err = l.js.UpdateStream(l.t.Context(), cfg)
		}
		stagetest.Must(l.t, err)
		l.rows = true
	}
	m.Subject = "rows.in"
	stagetest.Value(l.js.PublishMsg(l.t.Context(), m))(l.t)
}

func (l *lab) config(changes map[string]string) *config.Config {
	l.t.Helper()
	vars := maps.Clone(l.vars)
	maps.Copy(vars, changes)
	cfg := stagetest.Value(stagetest.Source(vars).Load(l.t.Context(), config.NeedCalls))(l.t)
	return cfg
}

// running is a stage that runs.
type running struct {
	*Stage
	lab  *lab
	soft context.CancelFunc
	hard context.CancelFunc
	// signal is soft with a cause.
	signal context.CancelCauseFunc
	done   chan error
}

// start runs a stage with some changes of the lab's variables.
func (l *lab) start(changes map[string]string, opts Options) *running {
	l.t.Helper()
	cfg := l.config(changes)
	servers := stagetest.Value(call.Open(cfg, l.dial, llmtest.Config{}.Start))(l.t)
	connect := l.connect
	if connect == nil {
		connect = func() *natsconn.Conn { return natsconn.Over(l.srv.Connect(), nil) }
	}
	conn := connect()
	stagetest.Must(l.t, FindLane(l.t.Context(), cfg, conn, l.logger()))
	s := stagetest.Value(New(cfg, conn, servers, l.logger(), opts))(l.t)
	if l.prepare != nil {
		l.prepare(s)
	}
	r := &running{Stage: s, lab: l, done: make(chan error, 1)}
	soft, signal := context.WithCancelCause(l.t.Context())
	stop := func() { signal(nil) }
	hard, kill := context.WithCancel(context.WithoutCancel(l.t.Context()))
	r.soft, r.hard, r.signal = stop, kill, signal
	go func() {
		err := s.Run(soft, hard)
		servers.Close()
		r.done <- err
		close(r.done)
	}()
	l.t.Cleanup(func() {
		kill()
		stop()
		for range r.done { // until it has ended
		}
	})
	return r
}

// logger is that of the stages.
func (l *lab) logger() *slog.Logger {
	if l.log != nil {
		return l.log
	}
	return slog.New(slog.NewTextHandler(&l.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// stop drains the stage and waits for its end.
func (r *running) stop() {
	r.lab.t.Helper()
	r.soft()
	if err := <-r.done; err != nil {
		r.lab.t.Errorf("run: %v", err)
	}
}

// ended waits at most an hour until the stage ends by itself, and returns its error.
func (r *running) ended() error {
	r.lab.t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(time.Hour):
		r.lab.t.Fatal("it does not end")
		return nil
	}
}

// work runs a stage until there are n results in all, and stops it.
func (l *lab) work(n int, changes map[string]string) *running {
	l.t.Helper()
	r := l.start(changes, Options{})
	l.await(n)
	r.stop()
	return r
}

// await waits until there are n results.
func (l *lab) await(n int) {
	l.t.Helper()
	for began := time.Now(); time.Since(began) < 1000*time.Second; time.Sleep(max(100*time.Millisecond, time.Since(began)/50)) {
		if stagetest.Stored(l.t, l.js, "RESULTS", "results.stage.0.rows") >= n {
			return
		}
	}
	l.t.Fatalf("never %d results; log:\n%s", n, l.logs.String())
}

// stored returns the messages on some subjects; nil while there are fewer than least.
func (l *lab) stored(stream, subject string, least int) []stagetest.Message {
	l.t.Helper()
	if n := stagetest.Stored(l.t, l.js, stream, subject); n == 0 || n < least {
		return nil
	}
	return stagetest.Read(l.t, l.js, stream, subject)
}

// labResult is a result as its reader sees it.
type labResult struct {
	Q     string `json:"q"`
	Text  string `json:"llm_response"`
	Model string `json:"llm_response_model"`
	Error *struct {
		Reason string `json:"reason"`
		Text   string `json:"error"`
		Errors []struct {
			Attempt  int    `json:"attempt"`
			Provider string `json:"provider"`
			Class    string `json:"class"`
		} `json:"errors"`
	} `json:"llm_response_error"`
}

func (l *lab) results() []labResult {
	l.t.Helper()
	var results []labResult
	for _, body := range l.bodies() {
		var r labResult
		stagetest.Must(l.t, json.Unmarshal([]byte(body), &r))
		results = append(results, r)
	}
	return results
}

// noneFailed checks that no result is an error.
func (l *lab) noneFailed() {
	l.t.Helper()
	for i, r := range l.results() {
		if r.Error != nil {
			l.t.Fatalf("row %d: %+v", i+1, r.Error)
		}
	}
}

// page returns what a stage shows at /metrics.
func (r *running) page() string {
	r.lab.t.Helper()
	page := httptest.NewRecorder()
	r.metrics.Handler().ServeHTTP(page, httptest.NewRequestWithContext(r.lab.t.Context(), http.MethodGet, "/metrics", nil))
	return page.Body.String()
}

// bodies returns the results' bodies in order.
func (l *lab) bodies() []string {
	l.t.Helper()
	var bodies []string
	for _, m := range l.stored("RESULTS", "results.stage.0.rows", 0) {
		bodies = append(bodies, string(m.Body))
	}
	return bodies
}

// events returns the audit's events of one kind, in the order stored.
func (l *lab) events(kind auditlog.Kind) []*auditlog.Event {
	l.t.Helper()
	var events []*auditlog.Event
	for _, m := range l.stored("AUDIT", "audit.stage.*."+string(kind), 0) {
		e := stagetest.Value(auditlog.Decode(m.Body))(l.t)
		events = append(events, e)
	}
	return events
}

// targets lists provider:model of each call of the audit.
func (l *lab) targets() []string {
	l.t.Helper()
	var list []string
	for _, e := range l.events(auditlog.KindCall) {
		list = append(list, e.Call.Provider+":"+e.Call.Model)
	}
	return list
}

// sources counts the rows of the audit by their source.
func (l *lab) sources() map[string]int {
	l.t.Helper()
	counts := map[string]int{}
	for _, e := range l.events(auditlog.KindRow) {
		counts[e.Row.Source]++
	}
	return counts
}
