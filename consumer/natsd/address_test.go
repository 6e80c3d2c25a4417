package natsd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gofrs/flock"
)

// A lock on a file that was removed after it was opened is no lock on the directory: another process locks the next file.
func TestALockOnARemovedFileDoesNotCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockFile)
	lock := flock.New(path)
	if ok, err := lock.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	defer lock.Close() //nolint:errcheck // only a test holds it
	if !isNamed(lock, path) {
		t.Error("the file is at its path, and is not found there")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if isNamed(lock, path) {
		t.Error("the file is gone, and is found")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if isNamed(lock, path) {
		t.Error("another file is at its path, and is taken for it")
	}
}
