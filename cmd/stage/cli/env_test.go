package cli

import (
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
)

// stuckPipe is a pipe without a reader: a write returns only once the test has ended.
type stuckPipe struct{ *io.PipeWriter }

func newPipe(t *testing.T) stuckPipe {
	t.Helper()
	_, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	return stuckPipe{w}
}

// The last resort: a command that ignores all signals, and a standard error that takes nothing.
func TestSecondSignalEndsAStuckProcessWithinFiveSeconds(t *testing.T) {
	for name, stderr := range map[string]func(t *testing.T, said io.Writer) io.Writer{
		"a standard error that is read":     func(_ *testing.T, said io.Writer) io.Writer { return said },
		"a standard error that is not read": func(t *testing.T, _ io.Writer) io.Writer { t.Helper(); return newPipe(t) },
	} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				var said stagetest.Buffer
				var signals fakeSignals
				code := make(chan int, 1)
				env := &Env{Notify: signals.notify, Stderr: stderr(t, &said), Exit: func(c int) { code <- c }}
				_, _, stop := env.Contexts(t.Context())
				defer stop()
				var work sync.WaitGroup
				block := newPipe(t)
				work.Go(func() { _, _ = block.Write([]byte("x")) })
				signals.send(syscall.SIGTERM)
				select {
				case <-code:
					t.Fatal("the first signal ended the process")
				case <-time.After(time.Hour):
				}
				signals.send(syscall.SIGTERM)
				began := time.Now()
				if got := <-code; got != exitInterrupted {
					t.Errorf("exit code %d, want %d", got, exitInterrupted)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
				if _, blocked := env.Stderr.(stuckPipe); !blocked && !strings.Contains(said.String(), "still in cli.") {
					t.Errorf("it said %q", said.String())
				}
			})
		})
	}
}
