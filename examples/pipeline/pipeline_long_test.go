//go:build long

package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/examples/internal/running"
)

// TestThePipelineOfTheReadmeWorks runs producer and consumer as in the README, against a stage and a server over the
// network.
func TestThePipelineOfTheReadmeWorks(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	defer running.Stage(t, srv, map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE_FILE": "../prompt.jinja", "STAGE_LOOKUP_FILE": "../labels.yaml", "STAGE_POOL_SIZE": "8",
	})()

	url := running.URL(srv)
	for _, rows := range []string{"200", "400"} { // the second time, on the streams as they are then
		publish(t, srv, "rows.others", `{"text":"of another publisher"}`)
		run(t, "200 rows published", "./producer", "-url", url, "../reviews.jsonl")
		run(t, "no gap, no double, in order", "./consumer", "-url", url, "-rows", rows)
	}
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

// run runs one program of the example and wants its last words.
func run(t *testing.T, want string, args ...string) {
	t.Helper()
	if out := running.Program(t, args...); !strings.Contains(out, want) {
		t.Fatalf("%v: want %q in\n%s", args, want, out)
	}
}
