package natsd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
)

// look holds the lock as a process does for the moment in which it looks whether a server runs on the directory.
func look(t *testing.T, dir string) (end func()) {
	t.Helper()
	lock := flock.New(filepath.Join(dir, lockFile), flock.SetFlag(os.O_CREATE|os.O_RDONLY))
	if ok, err := lock.TryRLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return func() { _ = lock.Close() }
}

func writeStale(t *testing.T, dir string) {
	t.Helper()
	if err := writeAddress(dir, Address{URL: "nats://127.0.0.1:1", Token: "x", PID: 1}); err != nil {
		t.Fatal(err)
	}
}

// A killed server leaves its address. Of two processes that look at once, neither takes the other for the server.
func TestTwoLooksAtOnceFindNoServer(t *testing.T) {
	dir := t.TempDir()
	writeStale(t, dir)
	defer look(t, dir)()
	if a, running, err := Discover(dir); running || err != nil {
		t.Errorf("got %v, running %v, %v", a, running, err)
	}
}

// A server starts while another process looks whether one runs.
func TestALookIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		end := look(t, dir)
		time.AfterFunc(10*time.Millisecond, end)
		lock, err := lockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := lockDir(dir); !errors.Is(err, ErrLocked) || time.Since(start) > 0 {
			t.Errorf("the lock of a server is waited for: %v after %v", err, time.Since(start))
		}
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A server that starts has no address yet. The file may still have the address of one that was killed.
func TestAStartingServerHasNoAddress(t *testing.T) {
	dir := t.TempDir()
	writeStale(t, dir)
	release, err := Lock(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if a, running, err := Discover(dir); running || err != nil {
		t.Errorf("got %v, running %v, %v", a, running, err)
	}
}
