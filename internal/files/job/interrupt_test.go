package job

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
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

// TestResultsOfTheStopAreWritten interrupts a job while all of its calls are in flight. They end
// after that, and OUT has their results when the job has ended: all of them, or those before a row
// that was not called.
func TestResultsOfTheStopAreWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		rows, calls int
		order       string
	}{
		"the last rows": {rows: 4, calls: 4, order: "none"},
		"rows are left": {rows: 40, calls: 4, order: "stream"},
	} {
		t.Run(name, func(t *testing.T) {
			soft, interrupt := context.WithCancelCause(t.Context())
			defer interrupt(nil)
			var started atomic.Int64
			llm := stagetest.Value(llmtest.New(llmtest.Config{}))(t)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if started.Add(1) == int64(tt.calls) {
					interrupt(&stopping.InterruptError{Signal: syscall.SIGINT})
				}
				<-soft.Done()
				llm.ServeHTTP(w, r)
			}))
			defer server.Close()
			dir := t.TempDir()
			input := stagetest.File(t, "rows.jsonl", strings.Repeat("{\"id\":1}\n", tt.rows))
			cfg := stagetest.ConfigOfCalls(t, "STAGE_LLM_PROVIDER", "openai", "STAGE_LLM_BASE_URL", server.URL+"/v1", "STAGE_LLM_API_KEY", "k",
				"STAGE_LLM_MODEL", "m", "STAGE_TEMPLATE", "{{ row.id }}", "STAGE_POOL_SIZE", strconv.Itoa(tt.calls), "STAGE_DEDUPE", "off", "STAGE_ORDER", tt.order,
				"STAGE_DATA_DIR", dir, "STAGE_HTTP_ADDR", "127.0.0.1:0", "STAGE_LOG_LEVEL", "error")
			out, stderr := filepath.Join(dir, "out.jsonl"), &stagetest.Buffer{}
			err := Process(soft, t.Context(), IO{In: strings.NewReader(""), Out: &stagetest.Buffer{}, Err: stderr}, cfg, input,
				Options{Out: out, Job: "job", Where: func(string) string { return "" }})
			if _, interrupted := errors.AsType[*stopping.InterruptError](err); interrupted != (tt.rows > tt.calls) || err != nil && !interrupted {
				t.Errorf("it ended with %v", err)
			}
			written := stagetest.Value(os.ReadFile(out))(t)
			if n := bytes.Count(written, []byte("\n")); n != tt.calls || !strings.HasPrefix(stderr.String(), strconv.Itoa(tt.calls)+" results written") {
				t.Errorf("%d lines are written, want %d:\n%s", n, tt.calls, stderr)
			}
		})
	}
}
