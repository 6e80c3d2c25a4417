package load

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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

func TestASpooledInputIsThatOfAFile(t *testing.T) {
	for _, content := range []string{"", "{\"n\":1}\n\n{\"n\":2}", "a,b\n1,2\n", "[{\"n\":1}]"} {
		t.Setenv("TMPDIR", t.TempDir())
		file := opened(t, stagetest.File(t, "rows", content), nil)
		in := opened(t, "-", strings.NewReader(content))
		if in.ID() != "" {
			t.Errorf("%q: standard input has the ID %s before it is read", content, in.ID())
		}
		stagetest.Must(t, in.Spool(t.Context()))
		if in.ID() != file.ID() || in.Rows != file.Rows {
			t.Errorf("%q: got %s with %d rows, want %s with %d", content, in.ID(), in.Rows, file.ID(), file.Rows)
		}
		got, err := io.ReadAll(in.content())
		if err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
		stagetest.Must(t, in.File.Close())
		if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
			t.Errorf("left in the directory of temporary files: %v, %v", left, err)
		}
	}
}

// opened returns the source of that name, which is closed with the test if it still is open.
func opened(t *testing.T, name string, stdin io.Reader) *Source {
	t.Helper()
	s, err := OpenSource(t.Context(), stdin, name, rowfile.Spec{})
	stagetest.Must(t, err)
	t.Cleanup(func() { _ = s.File.Close() })
	return s
}
