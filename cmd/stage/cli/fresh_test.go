package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// TestFreshWithStoredRepliesKeepsThem runs the command itself: process twice, the second
// time from the beginning.
func TestFreshWithStoredRepliesKeepsThem(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	stagetest.Must(t, os.WriteFile(in, []byte("{\"q\":\"one\"}\n{\"q\":\"two\"}\n"), 0o600))
	process := func(args ...string) (out, errs string) {
		var stdout, stderr bytes.Buffer
		env := &Env{
			Args: append([]string{
				"process", in, "--llm-provider=mock", "--template={{ row.q }}", "--dedupe=stored", "--data-sync=1s",
				"--data-dir=" + filepath.Join(dir, "data"), "--http-addr=127.0.0.1:0",
			}, args...),
			Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
		}
		if code := Main(context.Background(), env); code != exitDone {
			t.Fatalf("exit code %d:\n%s", code, stderr.String())
		}
		return stdout.String(), stderr.String()
	}
	first, _ := process()
	second, errs := process("--fresh")
	if first != second || !strings.Contains(errs, ": 0 calls, 0 capacity retries, 0 tokens, cost in USD 0.000000") {
		t.Errorf("first:\n%ssecond:\n%s%s", first, second, errs)
	}
	if _, errs = process("--fresh", "--dedupe=off"); !strings.Contains(errs, ": 2 calls,") {
		t.Errorf("without dedupe:\n%s", errs)
	}
}

// TestFreshDiscardsNothingWhereTheCommandCannotRun starts a job again with settings with which it
// can't run: its provider refuses them, the HTTP address is no address of this machine, or no file
// can be created where the results go.
func TestFreshDiscardsNothingWhereTheCommandCannotRun(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	stagetest.Must(t, os.WriteFile(in, []byte("{\"q\":\"one\"}\n"), 0o600))
	process := func(args ...string) (code int, errs string) {
		var stderr bytes.Buffer
		env := &Env{
			Args: append([]string{
				"process", in, "--template={{ row.q }}", "--job=once", "--data-sync=1s", "--llm-provider=mock",
				"--data-dir=" + filepath.Join(dir, "data"), "--http-addr=127.0.0.1:0",
			}, args...),
			Environ: map[string]string{"STAGE_LLM_API_KEY": "sk-abcdefgh"},
			Stdin:   strings.NewReader(""), Stdout: new(bytes.Buffer), Stderr: &stderr,
		}
		return Main(context.Background(), env), stderr.String()
	}
	if code, errs := process(); code != exitDone {
		t.Fatalf("exit code %d:\n%s", code, errs)
	}
	for want, args := range map[string][]string{
		"anthropic has no embeddings":     {"--llm-provider=anthropic", "--llm-model=m", "--task=embed"},
		"listen on 192.0.2.1:80":          {"--http-addr=192.0.2.1:80"},
		"results are written beside that": {"-o", "/proc/out.jsonl"},
	} {
		if strings.Contains(want, "beside") && runtime.GOOS != "linux" {
			continue // no other system has such a directory for all users
		}
		if code, errs := process(append(args, "--fresh")...); code == exitDone || !strings.Contains(errs, want) {
			t.Errorf("exit code %d, want an error with %q:\n%s", code, want, errs)
		}
		if code, errs := process(); code != exitDone || !strings.Contains(errs, "this run: 0 calls") {
			t.Errorf("%s: exit code %d, the results are gone:\n%s", want, code, errs)
		}
	}
}
