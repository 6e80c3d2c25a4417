//go:build long

package pipeline_test

import (
	"context"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// TestThePipelineOfTheReadmeWorks runs producer and consumer as in the README, against a stage and a server over the
// network.
func TestThePipelineOfTheReadmeWorks(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	url := strings.Replace(srv.URL(), "nats://", "nats://"+srv.Token()+"@", 1)

	cfg, err := config.Source{Environ: map[string]string{
		"STAGE_NATS_URL": url, "STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE_FILE": "../prompt.jinja", "STAGE_LOOKUP_FILE": "../labels.yaml",
		"STAGE_POOL_SIZE": "8", "STAGE_HTTP_ADDR": "127.0.0.1:0",
	}}.Load(t.Context(), config.NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	soft, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- stage.Run(soft, t.Context(), cfg, stage.Deps{Logger: slog.New(slog.DiscardHandler)}) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("stage: %v", err)
		}
	}()
	awaitStreams(t, srv)

	publish(t, srv, "rows.others", `{"text":"of another publisher"}`)
	run(t, "200 rows published", "./producer", "-url", url, "../reviews.jsonl")
	run(t, "no gap, no double, in order", "./consumer", "-url", url, "-rows", "200")
	// Again, on the streams as they are now.
	publish(t, srv, "rows.others", `{"text":"of another publisher"}`)
	run(t, "200 rows published", "./producer", "-url", url, "../reviews.jsonl")
	run(t, "no gap, no double, in order", "./consumer", "-url", url, "-rows", "400")
}

// publish stores a row that is not of the producer.
func publish(t *testing.T, srv *natsd.Server, subject, body string) {
	t.Helper()
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request(subject, []byte(body), time.Minute); err != nil {
		t.Fatal(err)
	}
}

// awaitStreams waits until the stage has created its streams, the results last.
func awaitStreams(t *testing.T, srv *natsd.Server) {
	t.Helper()
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stagetest.AwaitConsumer(t, js, "ROWS", "stage-0")
}

// run runs one program of the example and wants its last words.
func run(t *testing.T, want string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", append([]string{"run"}, args...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), want) {
		t.Fatalf("%v: %v, want %q in\n%s", args, err, want, out)
	}
}
