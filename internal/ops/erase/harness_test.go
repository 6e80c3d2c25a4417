package erase_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/erase"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// site is a NATS server and an LLM that stages in the same bubble work with.
type site struct {
	t    *testing.T
	srv  *stagetest.NATS
	js   jetstream.JetStream
	llm  *llmtest.Server
	pipe *llmtest.PipeListener
	vars map[string]string
	logs stagetest.Buffer
}

func newSite(t *testing.T, llm llmtest.Config, vars map[string]string) *site {
	t.Helper()
	n := stagetest.StartNATS(t)
	// Before any stage, which creates an input stream that is missing, too.
	stagetest.Value(n.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}))(t)
	s := &site{t: t, srv: n, js: n.JS, llm: stagetest.Value(llmtest.New(llm))(t)}
	pipe, stop := s.llm.Pipe()
	t.Cleanup(stop)
	s.pipe = pipe
	s.vars = map[string]string{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_MODEL": "large", "STAGE_LLM_BASE_URL": "http://llm.test/v1", "STAGE_LLM_API_KEY": "sk-secret",
		"STAGE_TEMPLATE": "{{ row.q }}", "STAGE_POOL_SIZE": "4", "STAGE_RETRY_BASE_DELAY": "10ms", "STAGE_CONTROL": "true",
	}
	maps.Copy(s.vars, vars)
	return s
}

func (s *site) config() *config.Config {
	s.t.Helper()
	return stagetest.Value(stagetest.Source(s.vars).Load(s.t.Context(), config.NeedCalls))(s.t)
}

// rows publishes rows with these members q, of customers that take turns.
func (s *site) rows(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		s.publish(&nats.Msg{Subject: "rows.in", Data: fmt.Appendf(nil, `{"q":%q}`, text)})
	}
}

func (s *site) publish(m *nats.Msg) {
	s.t.Helper()
	stagetest.Value(s.js.PublishMsg(s.t.Context(), m))(s.t)
}

// start runs a stage; stop ends it.
func (s *site) start() (stop func()) {
	s.t.Helper()
	cfg := s.config()
	soft, end := context.WithCancel(s.t.Context())
	hard, kill := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- stage.Run(soft, hard, cfg, stage.Deps{
			NATS: func() (*nats.Conn, error) { return s.srv.Server.Connect() },
			DialLLM: func(ctx context.Context, network, address string) (net.Conn, error) {
				return s.pipe.DialContext(ctx, network, address)
			},
			MockLLM: llmtest.Config{}.Start, Listener: llmtest.NewPipeListener(),
			Logger: slog.New(slog.NewTextHandler(&s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		close(done)
	}()
	s.t.Cleanup(func() {
		kill()
		end()
		for range done { // until it has ended
		}
	})
	return func() {
		s.t.Helper()
		end()
		if err := <-done; err != nil {
			s.t.Errorf("run: %v", err)
		}
	}
}

// await waits until there are n messages on a subject of a stream.
func (s *site) await(stream, subject string, n int) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < 1000*time.Second; time.Sleep(50 * time.Millisecond) {
		if stagetest.Stored(s.t, s.js, stream, subject) >= n {
			return
		}
	}
	s.t.Fatalf("never %d messages on %s; log:\n%s", n, subject, s.logs.String())
}

// results counts the results that are stored.
func (s *site) results() int { return stagetest.Stored(s.t, s.js, "RESULTS", "results.stage.*.rows") }

// work runs a stage until there are n results, and stops it.
func (s *site) work(n int) {
	s.t.Helper()
	stop := s.start()
	s.await("RESULTS", "results.stage.*.rows", n)
	stop()
}

// rowsOf selects rows.
func rowsOf(rows ...uint64) erase.Options {
	o := erase.Options{Partition: -1, By: "alice@laptop"}
	for _, row := range rows {
		o.Rows = append(o.Rows, erase.Range{First: row, Last: row})
	}
	return o
}

// erase erases rows, and returns what was done.
func (s *site) erase(o erase.Options) *erase.Report {
	s.t.Helper()
	plan := stagetest.Value(erase.New(s.t.Context(), s.js, s.config(), o))(s.t)
	stagetest.Must(s.t, plan.Execute(s.t.Context()))
	return plan.Report()
}

// verify returns the report of verify.
func (s *site) verify() *verify.Report {
	s.t.Helper()
	return stagetest.Value(verify.Run(s.t.Context(), s.js, s.config(), io.Discard))(s.t)
}

// proven checks that verify finds nothing wrong.
func (s *site) proven() *verify.Report {
	s.t.Helper()
	r := s.verify()
	if r.Verdict != verify.VerdictProven {
		var b bytes.Buffer
		r.WriteText(&b)
		s.t.Errorf("not proven: %v\n%s", r.Err(), b.String())
	}
	return r
}

// usage returns the sums over the calls.
func (s *site) usage() string {
	s.t.Helper()
	cfg := s.config()
	book := usage.NewBook(nil)
	r := usage.NewReader(cfg, book, usage.Options{Stages: []string{cfg.Name}})
	stagetest.Must(s.t, r.Read(s.t.Context(), s.js))
	return string(stagetest.Value(json.Marshal(r.Report().Total))(s.t))
}

// holds reports which files of the server's store hold a text.
func (s *site) holds(text string) (files []string) {
	s.t.Helper()
	stagetest.Must(s.t, filepath.WalkDir(s.srv.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // a file that the server has just replaced
		}
		if bytes.Contains(content, []byte(text)) {
			rel, _ := filepath.Rel(s.srv.Dir, path)
			files = append(files, rel)
		}
		return nil
	}))
	return files
}
