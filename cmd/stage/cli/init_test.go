package cli

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestOneOfManyInitsWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var all sync.WaitGroup
	won := make(chan error, 8)
	for range cap(won) {
		all.Go(func() { won <- writeStarter(dir, false) })
	}
	all.Wait()
	succeeded := 0
	for range cap(won) {
		if err := <-won; err == nil {
			succeeded++
		}
	}
	files, err := os.ReadDir(dir)
	if succeeded != 1 || len(files) != len(starterFiles) || err != nil {
		t.Errorf("%d succeeded and left %d files, %v", succeeded, len(files), err)
	}
}

func TestInitThatFailsLeavesNoHalves(t *testing.T) {
	dir := t.TempDir()
	stagetest.Must(t, os.MkdirAll(filepath.Join(dir, ".env", "full"), 0o700))
	if err := writeStarter(dir, true); err == nil {
		t.Error("a directory was overwritten")
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 { // prompt.jinja, and the directory
		t.Errorf("got %v, %v", files, err)
	}
	path := filepath.Join(dir, "taken")
	if err := errors.Join(createFile(path, "first"), createFile(path, "second")); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(path); string(text) != "first" {
		t.Errorf("got %q, %v", text, err)
	}
}
