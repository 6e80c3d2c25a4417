package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestRunSetsTheMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want int64
	}{
		{"a server elsewhere", []string{"--nats-url=nats://127.0.0.1:1", "--window-bytes=64MiB", "--pool-size=8"}, 68<<20 + 1<<20 + 20<<20},
		{"every partition's window", []string{"--nats-url=nats://127.0.0.1:1", "--window-bytes=64MiB", "--partitions=8", "--input-subject=rows.{partition}.>"}, 8*68<<20 + 2<<20 + 20<<20},
		{"an embedded server, whose need is unknown", []string{"--data-dir=" + t.TempDir()}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the command ends as soon as it would begin to work
			var limit int64
			var out, errs strings.Builder
			env := &Env{
				Args: append([]string{"run", "--llm-provider=mock", "--template=x"}, tt.args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
				LimitMemory: func(bytes int64) { limit = bytes },
			}
			Main(ctx, env)
			if limit != tt.want {
				t.Errorf("got %d, want %d; stderr:\n%s", limit, tt.want, errs.String())
			}
		})
	}
}

func TestProcessSetsTheMemoryLimit(t *testing.T) {
	input := filepath.Join(t.TempDir(), "rows.jsonl")
	stagetest.Must(t, os.WriteFile(input, []byte("{}\n"), 0o600))
	var limit int64
	var out, errs strings.Builder
	env := &Env{
		Args:  []string{"process", input, "--llm-provider=mock", "--template=x", "--pool-size=164", "--http-addr=127.0.0.1:0", "--data-dir=" + t.TempDir()},
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		LimitMemory: func(bytes int64) { limit = bytes },
	}
	code := Main(t.Context(), env)
	// More, if the other tests of this process have a large heap in use.
	if want := int64(stage.EmbeddedMemory + 100*(128<<10)); code != 0 || limit < want {
		t.Errorf("exit %d and limit %d, want 0 and at least %d; stderr:\n%s", code, limit, want, errs.String())
	}
}
