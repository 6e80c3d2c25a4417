// Package running runs what the tests of the examples need: a stage beside them, and
// their programs.
package running

import (
	"context"
	"log/slog"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// URL is the address of a server, with its token.
func URL(srv *natsd.Server) string {
	return strings.Replace(srv.URL(), "nats://", "nats://"+srv.Token()+"@", 1)
}

// Stage runs a stage on a server until stop is called, which waits for its end. The
// settings are variables as STAGE_NAME. The stage has created its streams and its
// consumer when Stage returns.
func Stage(t *testing.T, srv *natsd.Server, settings map[string]string) (stop func()) {
	t.Helper()
	environ := maps.Clone(settings)
	environ["STAGE_NATS_URL"], environ["STAGE_HTTP_ADDR"] = URL(srv), "127.0.0.1:0"
	cfg, err := config.Source{Environ: environ}.Load(t.Context(), config.NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	soft, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- stage.Run(soft, t.Context(), cfg, stage.Deps{MockLLM: llmtest.Config{}.Start, Logger: slog.New(slog.DiscardHandler)})
	}()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("stage %s: %v", cfg.Name, err)
		}
	}
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stagetest.AwaitConsumer(t, js, cfg.Input.Stream, cfg.Name+"-0")
	return stop
}

// Program runs a program of an example with "go run", which takes at most two minutes,
// and returns what it prints.
func Program(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", append([]string{"run"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("go run %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
