package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
	"go.yaml.in/yaml/v4"
)

// TestTheChainsOfTheReadmeWork runs the second command of each chain as in the README, with its stages beside it.
func TestTheChainsOfTheReadmeWork(t *testing.T) {
	dir := t.TempDir()
	srv, err := natsd.Start(natsd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	for _, c := range []struct {
		stages, rows, last, field string
		want                      []string // beginnings of lines
	}{
		{"mapreduce.yaml", "articles.jsonl", "reduce", "summary", []string{
			`5 rows published`, `line 1: "`, `line 2: "`, `line 3: "`, `line 4: "`, `line 5: "`,
		}},
		{"forecast.yaml", "questions.jsonl", "forecast", "forecasts", []string{
			`3 rows published`, `line 1: ["`, `line 2: ["`, `line 3: ["`,
		}},
	} {
		stop := runStages(t, srv, c.stages)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		out, err := exec.CommandContext(ctx, "go", "run", ".", "-data-dir", dir, c.rows, c.last, c.field).CombinedOutput()
		cancel()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err != nil || len(lines) != len(c.want) {
			t.Fatalf("%s: %v, %s", c.rows, err, out)
		}
		for i, want := range c.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s: got %s, want %s…", c.rows, lines[i], want)
			}
			if n := strings.Count(lines[i], `","`); c.field == "forecasts" && i > 0 && n != 7 {
				t.Errorf("%s: got %d forecasts, want 8: %s", c.rows, n+1, lines[i])
			}
		}
		stop()
	}
}

// runStages runs the stages of a file until stop is called.
func runStages(t *testing.T, srv *natsd.Server, name string) (stop func()) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var entries []map[string]any
	if err := yaml.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	soft, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, entry := range entries {
		environ := map[string]string{
			"STAGE_NATS_URL": strings.Replace(srv.URL(), "nats://", "nats://"+srv.Token()+"@", 1), "STAGE_HTTP_ADDR": "127.0.0.1:0", "STAGE_STREAM_STORAGE": "memory",
		}
		for key, value := range entry {
			environ["STAGE_"+strings.ToUpper(key)] = fmt.Sprint(value)
		}
		cfg, err := config.Source{Environ: environ}.Load(t.Context(), config.NeedCalls)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := stage.Run(soft, t.Context(), cfg, stage.Deps{Logger: slog.New(slog.DiscardHandler)}); err != nil {
				t.Errorf("stage %s: %v", cfg.Name, err)
			}
		})
		awaitDurable(t, srv, cfg)
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// awaitDurable waits until a stage has created its streams and its consumer.
func awaitDurable(t *testing.T, srv *natsd.Server, cfg *config.Config) {
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
	stagetest.AwaitConsumer(t, js, cfg.Input.Stream, cfg.Name+"-0")
}
