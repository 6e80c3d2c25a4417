//go:build long

// Package examples_test runs the programs of the examples as their READMEs do, each against stages and a server over the
// network.
package examples_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
	"go.yaml.in/yaml/v4"
)

// testbed is a server, beside which a test runs stages and programs.
type testbed struct {
	t   *testing.T
	srv *natsd.Server
	dir string // of the server
}

// newTestbed starts a server. Programs run in a directory, as their READMEs say.
func newTestbed(t *testing.T, dir string) *testbed {
	t.Helper()
	t.Chdir(dir)
	b := &testbed{t: t, dir: t.TempDir()}
	b.srv = stagetest.Value(natsd.Start(natsd.Config{Dir: b.dir}))(t)
	t.Cleanup(b.srv.Stop)
	return b
}

// url is the address of the server, with its token.
func (b *testbed) url() string {
	return strings.Replace(b.srv.URL(), "nats://", "nats://"+b.srv.Token()+"@", 1)
}

// stage runs a stage until stop is called, which waits for its end. The settings are variables as STAGE_NAME. The stage
// has created its streams and its consumer when stage returns.
func (b *testbed) stage(settings map[string]string) (stop func()) {
	b.t.Helper()
	environ := maps.Clone(settings)
	environ["STAGE_NATS_URL"], environ["STAGE_HTTP_ADDR"] = b.url(), "127.0.0.1:0"
	cfg := stagetest.Value(config.Source{Environ: environ}.Load(b.t.Context(), config.NeedCalls))(b.t)
	soft, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- stage.Run(soft, b.t.Context(), cfg, stage.Deps{MockLLM: llmtest.Config{}.Start, Logger: slog.New(slog.DiscardHandler)})
	}()
	nc := stagetest.Value(b.srv.Connect())(b.t)
	defer nc.Close()
	stagetest.AwaitConsumer(b.t, stagetest.Value(jetstream.New(nc))(b.t), cfg.Input.Stream, cfg.Name+"-0")
	return func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("stage %s: %v", cfg.Name, err)
		}
	}
}

// reviews are the settings of a stage with the prompt and the labels of the examples.
func reviews() map[string]string {
	return map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE_FILE": "../prompt.jinja", "STAGE_LOOKUP_FILE": "../labels.yaml", "STAGE_POOL_SIZE": "8",
	}
}

// program runs a program of an example with "go run", which takes at most two minutes, and returns what it prints.
func (b *testbed) program(args ...string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", append([]string{"run"}, args...)...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("go run %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Another stage has the answers than the one that took the batch.
func TestTheBatchOfTheReadmeWorks(t *testing.T) {
	b := newTestbed(t, "batch")
	stop := b.stage(reviews())
	id := strings.TrimSpace(b.program(".", "-url", b.url(), "submit", "questions.json"))
	stop()
	defer b.stage(reviews())()
	out := b.program(".", "-url", b.url(), "get", id)
	if n := strings.Count(out, "Answer "); n != 3 {
		t.Errorf("%d answers, want 3, in\n%s", n, out)
	}
}

func TestTheMapReduceOfTheReadmeWorks(t *testing.T) {
	b := newTestbed(t, "mapreduce")
	defer b.stage(reviews())()
	b.awaitService()
	out := b.program(".", "-url", b.url(), "article.txt")
	for _, want := range []string{"map: 4 of 4 paragraphs answered in ", "reduce: Answer "} {
		if !strings.Contains(out, want) {
			t.Fatalf("want %q in\n%s", want, out)
		}
	}
}

// awaitService waits until the stage answers batched requests.
func (b *testbed) awaitService() {
	b.t.Helper()
	nc := stagetest.Value(b.srv.Connect())(b.t)
	defer nc.Close()
	deadline, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if m, err := nc.RequestWithContext(deadline, "$SRV.INFO.llm-stage", nil); err == nil && strings.Contains(string(m.Data), "llm_query_batched") {
			return
		}
		select {
		case <-deadline.Done():
			b.t.Fatal("the stage has not answered within a minute")
		case <-tick.C:
		}
	}
}

// The answers name the digests of the photos, as sha256sum prints them.
func TestThePhotosOfTheReadmeAreSent(t *testing.T) {
	b := newTestbed(t, "..") // as the README says: in the root of the repository
	defer b.stage(map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_MESSAGES_FILE": "examples/photos/messages.yaml", "STAGE_STREAM_STORAGE": "memory",
	})()
	out := b.program("./examples/photos", "-data-dir", b.dir, "examples/photos/photos.jsonl")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, want := range []string{
		"4 rows published",
		"sha256 79ab5aad190bf5f9da79cab7fb615429694d3b1edfb456a3daf5a1fa3095ae48)",
		"sha256 d4301c1e646dec4973c70f765467a8e2996a940f3b3fb1f1162b2bd2c5677d7d)",
		"sha256 fe0f14bf3a15b83a7469fcab9a3c799fc2585fc658d517454b81586d610bd53e)",
		"show this product: kettle?", // it has no photo
	} {
		if len(lines) != 5 || !strings.HasSuffix(lines[i], want) {
			t.Fatalf("line %d is not one with %q:\n%s", i, want, out)
		}
	}
}

// TestTheChainsOfTheReadmeWork runs the second command of each chain, with its stages beside it.
func TestTheChainsOfTheReadmeWork(t *testing.T) {
	b := newTestbed(t, "..")
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
		stop := b.stages("examples/chain/" + c.stages)
		out := b.program("./examples/chain", "-data-dir", b.dir, "examples/chain/"+c.rows, c.last, c.field)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != len(c.want) {
			t.Fatalf("%s: got %d lines, want %d: %s", c.rows, len(lines), len(c.want), out)
		}
		for i, want := range c.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s: got %s, want %s…", c.rows, lines[i], want)
			}
			if n := strings.Count(lines[i], `","`); c.field == "forecasts" && i > 0 && n != 7 {
				t.Errorf("%s: got %d forecasts, want 8: %s", c.rows, n+1, lines[i])
			}
			if seen := strings.Count(lines[i], "| saw user, assistant, user"); c.field == "forecasts" && i > 0 && seen != 8 {
				t.Errorf("%s: %d calls had the research as an answer, want 8: %s", c.rows, seen, lines[i])
			}
		}
		stop()
	}
}

// stages runs the stages of a file until stop is called.
func (b *testbed) stages(name string) (stop func()) {
	b.t.Helper()
	var entries []map[string]any
	stagetest.Must(b.t, yaml.Unmarshal(stagetest.Value(os.ReadFile(name))(b.t), &entries))
	var stops []func()
	for _, entry := range entries {
		settings := map[string]string{"STAGE_STREAM_STORAGE": "memory"}
		for key, value := range entry {
			settings["STAGE_"+strings.ToUpper(key)] = fmt.Sprint(value)
		}
		stops = append(stops, b.stage(settings))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// TestThePipelineOfTheReadmeWorks runs producer and consumer, the second time on the streams as they are then.
func TestThePipelineOfTheReadmeWorks(t *testing.T) {
	b := newTestbed(t, "pipeline")
	defer b.stage(reviews())()
	nc := stagetest.Value(b.srv.Connect())(t)
	defer nc.Close()
	for _, rows := range []string{"200", "400"} {
		stagetest.Value(nc.Request("rows.others", []byte(`{"text":"of another publisher"}`), time.Minute))(t)
		for _, run := range [][]string{ // the words that its output must have, and the program
			{"200 rows published", "./producer", "-url", b.url(), "../reviews.jsonl"},
			{"no gap, no double, in order", "./consumer", "-url", b.url(), "-rows", rows},
		} {
			if out := b.program(run[1:]...); !strings.Contains(out, run[0]) {
				t.Fatalf("%v: want %q in\n%s", run[1:], run[0], out)
			}
		}
	}
}
