package main_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/examples/internal/running"
)

// TestTheExampleOfTheReadmeWorks runs the example as in the README, with another stage for the answers than the one that
// took the batch.
func TestTheExampleOfTheReadmeWorks(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	settings := map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE_FILE": "../prompt.jinja", "STAGE_LOOKUP_FILE": "../labels.yaml", "STAGE_POOL_SIZE": "8",
	}
	stop := running.Stage(t, srv, settings)
	id := strings.TrimSpace(running.Program(t, ".", "-url", running.URL(srv), "submit", "questions.json"))
	stop()
	defer running.Stage(t, srv, settings)()
	out := running.Program(t, ".", "-url", running.URL(srv), "get", id)
	if n := strings.Count(out, "Answer "); n != 3 {
		t.Errorf("%d answers, want 3, in\n%s", n, out)
	}
}
