package main_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/examples/internal/running"
)

// TestTheExampleOfTheReadmeWorks runs the example as in the README, against a stage and a server over the network.
func TestTheExampleOfTheReadmeWorks(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	defer running.Stage(t, srv, map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE_FILE": "../prompt.jinja", "STAGE_LOOKUP_FILE": "../labels.yaml", "STAGE_POOL_SIZE": "8",
	})()
	awaitService(t, srv)

	out := running.Program(t, ".", "-url", running.URL(srv), "article.txt")
	for _, want := range []string{"map: 4 of 4 paragraphs answered in ", "reduce: Answer "} {
		if !strings.Contains(out, want) {
			t.Fatalf("want %q in\n%s", want, out)
		}
	}
}

// awaitService waits until the stage answers batched requests.
func awaitService(t *testing.T, srv *natsd.Server) {
	t.Helper()
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if m, err := nc.RequestWithContext(deadline, "$SRV.INFO.llm-stage", nil); err == nil && strings.Contains(string(m.Data), "llm_query_batched") {
			return
		}
		select {
		case <-deadline.Done():
			t.Fatal("the stage has not answered within a minute")
		case <-tick.C:
		}
	}
}
