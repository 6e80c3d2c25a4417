package natsd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
)

func TestNoServerStartsOnALockedDirectory(t *testing.T) {
	dir := t.TempDir()
	release, err := natsd.Lock(dir, time.Minute)
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
	if _, err := natsd.Lock(dir, 0); !errors.Is(err, natsd.ErrLocked) { // it has no address, so it might be a command
		t.Fatalf("lock under a server: got %v, want %v", err, natsd.ErrLocked)
	}
	srv.Stop()
	if _, err := natsd.Lock(filepath.Join(dir, "none"), time.Minute); err == nil {
		t.Error("want an error for a directory that does not exist")
	}
}

// A command that reads a store ends soon and is waited for; a stage is not.
func TestALockWaitsForCommandsOnly(t *testing.T) {
	dir := t.TempDir()
	command := start(t, natsd.Config{Dir: dir, Command: true})
	if _, err := natsd.Lock(dir, 0); !errors.Is(err, natsd.ErrLocked) {
		t.Fatalf("without waiting: got %v, want %v", err, natsd.ErrLocked)
	}
	locked := make(chan error, 1)
	go func() {
		release, err := natsd.Lock(dir, time.Minute)
		if err == nil {
			release()
		}
		locked <- err
	}()
	command.Stop()
	if err := <-locked; err != nil {
		t.Errorf("after the command has ended: %v", err)
	}
	start(t, natsd.Config{Dir: dir})
	if _, err := natsd.Lock(dir, time.Hour); !errors.Is(err, natsd.ErrLocked) {
		t.Errorf("under a stage: got %v, want %v", err, natsd.ErrLocked)
	}
}
