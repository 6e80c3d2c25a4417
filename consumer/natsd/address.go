package natsd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	addressFile = "nats.json"
	lockFile    = "lock"
)

// ErrLocked is returned by [Start] when another process runs a server on the directory.
var ErrLocked = errors.New("another process runs the embedded server on this directory")

// Address is how another process reaches a running embedded server.
type Address struct {
	URL   string `json:"url"`
	Token string `json:"token"`
	PID   int    `json:"pid"`
	// Command says that a command serves the store, which ends soon, rather than a stage
	// or a job.
	Command bool `json:"command,omitempty"`
}

// Format implements [fmt.Formatter]: no verb prints the token.
func (a Address) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "%s of process %d", a.URL, a.PID) // f keeps the error
}

// Discover returns the address of the server that runs on dir. ok is false when none
// does: an address file left by a killed process is distinguished from a live one by the
// lock, which dies with its process.
func Discover(dir string) (a Address, ok bool, err error) {
	if locked, err := isLocked(dir); err != nil || !locked {
		return Address{}, false, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, addressFile))
	if errors.Is(err, os.ErrNotExist) {
		return Address{}, false, nil
	}
	if err != nil {
		return Address{}, false, fmt.Errorf("embedded server address: %w", err)
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return Address{}, false, fmt.Errorf("embedded server address: %s: %w", filepath.Join(dir, addressFile), err)
	}
	return a, true, nil
}

// writeAddress replaces the address file in one step, so that a reader never sees half of
// it. Only the owner may read it: it holds the token.
func writeAddress(dir string, a Address) error {
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, addressFile+".new")
	if err := os.WriteFile(tmp, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, addressFile)); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	return nil
}

const (
	// lockPoll is the time between two attempts to take a lock that a command holds.
	lockPoll = 50 * time.Millisecond
	// lookPoll is the time between two attempts to take a lock that is only looked at, and
	// lookWait is how long it is tried. A look takes microseconds.
	lookPoll = 5 * time.Millisecond
	lookWait = time.Second
)

// Lock takes the directory's lock, so that no server starts on it until release is
// called. It waits at most so long for a command to end that has the store open. It
// returns [ErrLocked] after that, and at once when a stage or a job runs on it. The
// directory must exist.
func Lock(dir string, wait time.Duration) (release func(), err error) {
	for end := time.Now().Add(wait); ; time.Sleep(lockPoll) {
		lock, err := lockDir(dir)
		if err == nil {
			return func() { _ = lock.Close() }, nil
		}
		if !errors.Is(err, ErrLocked) || !time.Now().Before(end) {
			return nil, err
		}
		if a, running, unread := Discover(dir); unread == nil && running && !a.Command {
			return nil, err
		}
	}
}

// lockDir takes the directory's lock without waiting for who holds it: only the looks of
// [isLocked] are waited for. Closing the lock, or the end of the process, releases it. An
// address that is there by now is of a server that was killed, and is removed.
func lockDir(dir string) (*flock.Flock, error) {
	for end := time.Now().Add(lookWait); ; time.Sleep(lookPoll) {
		lock, err := tryLock(dir)
		if err == nil {
			_ = os.Remove(filepath.Join(dir, addressFile))
			return lock, nil
		}
		if !errors.Is(err, ErrLocked) || !time.Now().Before(end) {
			return nil, err
		}
		if locked, unread := isLocked(dir); locked || unread != nil {
			return nil, err
		}
	}
}

// tryLock takes the directory's lock. The holder may remove the file together with the
// directory, so the lock counts only if the file is still the one of that name: else two
// processes might hold two files.
func tryLock(dir string) (*flock.Flock, error) {
	path := filepath.Join(dir, lockFile)
	lock := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if !ok || !isNamed(lock, path) {
		_ = lock.Close()
		return nil, fmt.Errorf("%s: %w", dir, ErrLocked)
	}
	return lock, nil
}

// isLocked looks whether a process holds the directory's lock, and creates nothing. It
// shares the lock for that moment, so of two processes that look at once neither takes the
// other for a server.
func isLocked(dir string) (bool, error) {
	path := filepath.Join(dir, lockFile)
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY))
	ok, err := lock.TryRLock()
	named := ok && isNamed(lock, path)
	_ = lock.Close()
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the lock of %s: %w", dir, err)
	}
	return !named, nil // another file of that name has a holder, as far as this look can tell
}

// isNamed reports whether the file that is locked is still the one at path.
func isNamed(lock *flock.Flock, path string) bool {
	held, err := lock.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(held, named)
}
