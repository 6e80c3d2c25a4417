package chart

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// root is the repository, chartDir the chart.
const (
	root     = "../.."
	chartDir = root + "/deploy/helm/llm-stage"
)

var update = flag.Bool("update", false, "write goldens, values.schema.json and the chart's README")

// stageBinary is the program, built from this tree for the tests.
var stageBinary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "llm-stage-chart")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // left to the system
		stageBinary = filepath.Join(dir, "stage")
		build := exec.Command("go", "build", "-o", stageBinary, "./cmd/stage")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// run runs the program with an environment of its own, and returns stdout and stderr.
func run(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), stageBinary, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append([]string{}, env...), t.TempDir(), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// golden compares got with a file of testdata, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run make chart", err)
	}
	if string(want) != got {
		t.Errorf("%s is not what comes out now: read the difference, then run make chart\n%s", path, firstDifference(string(want), got))
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d: want %q\n     now  %q", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, now %d", len(w), len(g))
}
