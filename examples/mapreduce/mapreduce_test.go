package main_test

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
)

// TestTheExampleOfTheReadmeWorks runs the example as in the README, against a stage and a server over the network.
func TestTheExampleOfTheReadmeWorks(t *testing.T) {
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
	awaitService(t, srv)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "run", ".", "-url", url, "article.txt").CombinedOutput()
	for _, want := range []string{"map: 4 of 4 paragraphs answered in ", "reduce: Answer "} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%v, want %q in\n%s", err, want, out)
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
