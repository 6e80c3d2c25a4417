package natsd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
)

func TestNoServerStartsOnALockedDirectory(t *testing.T) {
	dir := t.TempDir()
	release, err := natsd.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := natsd.Start(natsd.Config{Dir: dir}); !errors.Is(err, natsd.ErrLocked) {
		t.Fatalf("start: got %v, want %v", err, natsd.ErrLocked)
	}
	// The holder may remove the file. Who locks the next one of that name has the directory, not who still holds the first.
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	release()
	srv := start(t, natsd.Config{Dir: dir, NoListen: true})
	if _, err := natsd.Lock(dir); !errors.Is(err, natsd.ErrLocked) {
		t.Fatalf("lock under a server: got %v, want %v", err, natsd.ErrLocked)
	}
	srv.Stop()
	if _, err := natsd.Lock(filepath.Join(dir, "none")); err == nil {
		t.Error("want an error for a directory that does not exist")
	}
}
