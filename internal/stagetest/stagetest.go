// Package stagetest has what tests of several packages need: configurations, a server and
// the streams of a stage, readers of streams, files, and buffers that goroutines share.
package stagetest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

// Buffer is a buffer for several goroutines. The zero value is empty.
type Buffer struct {
	Shown bool // with -v, as it is written

	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Shown && testing.Verbose() {
		_, _ = os.Stderr.Write(p)
	}
	return b.text.Write(p)
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines returns the lines of a log that hold a text.
func Lines(log, text string) []string {
	var found []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// JSONLines decodes each line of a JSON log.
func JSONLines[T any](tb testing.TB, log string) (lines []T) {
	tb.Helper()
	for text := range strings.Lines(log) {
		var line T
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			tb.Fatalf("%v: %s", err, text)
		}
		lines = append(lines, line)
	}
	return lines
}

// File writes a file of the test and returns its path.
func File[T ~string | ~[]byte](tb testing.TB, name string, text T) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// failer is a [testing.TB], or what rapid has for it.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// Must is [must.Do].
func Must(t failer, err error) {
	t.Helper()
	must.Do(t, err)
}

// Value is [must.Value].
func Value[T any](v T, err error) func(failer) T {
	return func(t failer) T {
		t.Helper()
		return must.Value(v, err)(t)
	}
}
