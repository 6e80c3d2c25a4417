package job

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
)

// interruptOn is standard error of a command that is interrupted as soon as it has printed a text.
type interruptOn struct {
	stagetest.Buffer
	text      string
	interrupt func()
}

func (w *interruptOn) Write(p []byte) (int, error) {
	if w.text != "" && bytes.Contains(p, []byte(w.text)) {
		w.interrupt()
	}
	return w.Buffer.Write(p)
}

func TestARepairThatIsInterruptedCanBeResumed(t *testing.T) {
	input, dir := stagetest.File(t, "rows.jsonl", "{\"id\":1}\n{\"n\":2}\n"), t.TempDir()
	out := filepath.Join(dir, "out.jsonl")
	process := func(stderr *interruptOn, retry *Retry) error {
		cfg := stagetest.ConfigOfCalls(t, "STAGE_LLM_PROVIDER", "mock", "STAGE_TEMPLATE", "{{ row.id }}",
			"STAGE_DATA_DIR", filepath.Join(dir, "data"), "STAGE_HTTP_ADDR", "127.0.0.1:0", "STAGE_LOG_LEVEL", "error")
		soft, interrupt := context.WithCancelCause(t.Context())
		defer interrupt(nil)
		stderr.interrupt = func() { interrupt(&stopping.InterruptError{Signal: syscall.SIGINT}) }
		return Process(soft, t.Context(), IO{In: strings.NewReader(""), Out: &stagetest.Buffer{}, Err: stderr}, cfg, input,
			Options{Mock: llmtest.Config{}.Start, Out: out, Job: "job", Retry: retry, Where: func(string) string { return "" }})
	}
	stagetest.Must(t, process(&interruptOn{}, nil))
	err := process(&interruptOn{text: "published again"}, &Retry{})
	if _, ok := errors.AsType[*stopping.InterruptError](err); !ok || !strings.Contains(err.Error(), "the same command resumes") {
		t.Errorf("interrupted: %v", err)
	}
	stderr := &interruptOn{}
	if err := process(stderr, nil); err != nil || !strings.Contains(stderr.String(), "2 results written, 1 of them errors") {
		t.Errorf("resumed: %v\n%s", err, stderr)
	}
}
