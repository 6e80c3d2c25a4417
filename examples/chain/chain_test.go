package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/examples/internal/running"
	"go.yaml.in/yaml/v4"
)

// TestTheChainsOfTheReadmeWork runs the second command of each chain as in the README, with its stages beside it.
func TestTheChainsOfTheReadmeWork(t *testing.T) {
	t.Chdir("../..") // as the README says: in the root of the repository
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
		stop := runStages(t, srv, "examples/chain/"+c.stages)
		out := running.Program(t, "./examples/chain", "-data-dir", dir, "examples/chain/"+c.rows, c.last, c.field)
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
	var stops []func()
	for _, entry := range entries {
		settings := map[string]string{"STAGE_STREAM_STORAGE": "memory"}
		for key, value := range entry {
			settings["STAGE_"+strings.ToUpper(key)] = fmt.Sprint(value)
		}
		stops = append(stops, running.Stage(t, srv, settings))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
