package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
)

// ErrInUse means that a process has the job open.
var ErrInUse = errors.New("is in use")

// ownFiles are the files that the program creates in the directory of a job beside its
// store, in the order in which they are removed. job.json comes last but for the lock: a
// job whose removal was killed can be removed again, or run from its beginning.
var ownFiles = []string{
	"nats.json", "nats.json.new", "outputs.json", "outputs.json.new",
	recordFile, recordFile + ".new", IdentityFile + ".new", IdentityFile, lockFile,
}

// Remove removes a job, but only what this program has created. kept reports that the
// directory holds other files, and so stays. No process can open the job meanwhile. The
// error is [ErrInUse] as for [Lock].
func Remove(j *Job, wait time.Duration) (kept bool, err error) {
	release, err := Lock(j.Dir, wait)
	if errors.Is(err, ErrInUse) {
		return false, err
	}
	if err != nil {
		return false, fmt.Errorf("remove job %s: %w", j.Name, err)
	}
	defer release()
	kept, err = remove(j.Dir)
	if err != nil {
		return kept, fmt.Errorf("remove job %s: %w", j.Name, err)
	}
	return kept, nil
}

// Lock keeps other processes from opening the store of the job in dir until release is
// called. If a command has it open that ends soon, Lock waits for its end, for wait at
// most. The error is [ErrInUse] after that, and at once if a run of the job has it open.
func Lock(dir string, wait time.Duration) (release func(), err error) {
	release, err = natsd.Lock(dir, wait)
	if errors.Is(err, natsd.ErrLocked) {
		who := ""
		if addr, running, err := natsd.Discover(dir); err == nil && running {
			who = fmt.Sprintf(" by process %d", addr.PID)
		}
		err = fmt.Errorf("job %s %w%s: stop it first", filepath.Base(dir), ErrInUse, who)
	}
	return release, err
}

// RemoveStore removes the store below the directory of a job, which the caller has
// locked. It goes in one step, since a job that is started again must find all of it or
// nothing.
func RemoveStore(dir string) error {
	store, removed := filepath.Join(dir, StoreDir), filepath.Join(dir, removedDir)
	if err := os.RemoveAll(removed); err != nil { // of an earlier removal
		return err
	}
	if err := os.Rename(store, removed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(removed)
}

// remove empties the directory and removes it.
func remove(dir string) (kept bool, err error) {
	if err := RemoveStore(dir); err != nil {
		return true, err
	}
	for _, name := range ownFiles {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	rest, err := os.ReadDir(dir)
	if err != nil || len(rest) > 0 {
		return true, err
	}
	return false, os.Remove(dir)
}
