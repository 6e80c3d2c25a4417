package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
)

// No virtual time: it is the kernel that waits.
func TestANamedPipeThatNobodyOpensIsInterrupted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	stagetest.Must(t, syscall.Mkfifo(name, 0o600))
	signal := &stopping.InterruptError{Signal: os.Interrupt}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(signal)
	if _, err := OpenSource(ctx, nil, name, rowfile.Spec{}); !errors.Is(err, signal) {
		t.Errorf("opened with %v", err)
	}
	w, err := os.OpenFile(name, os.O_RDWR, 0) // releases the open that waits
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
}
