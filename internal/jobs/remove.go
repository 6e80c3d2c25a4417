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

// ownFiles are all that the program creates in the directory of a job beside its store, in the order in which they are
// removed: a removal that is cut short leaves a job that can be removed, or run again from its beginning.
var ownFiles = []string{"nats.json", "nats.json.new", "outputs.json", "outputs.json.new", "job.json.new", identityFile, lockFile}

// Remove removes a job, but only what this program has created. kept reports that the directory holds other files and
// stays. A job that a process has open is [ErrInUse], after wait where that is a command, which ends soon; no other
// process can open it meanwhile.
func Remove(j *Job, wait time.Duration) (kept bool, err error) {
	release, err := natsd.Lock(j.Dir, wait)
	if errors.Is(err, natsd.ErrLocked) {
		who := ""
		if addr, running, err := natsd.Discover(j.Dir); err == nil && running {
			who = fmt.Sprintf(" by process %d", addr.PID)
		}
		return false, fmt.Errorf("job %s %w%s: stop it first", j.Name, ErrInUse, who)
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

// remove empties the directory and removes it. The store goes in one step, since a job that is started again must find
// all of it or nothing.
func remove(dir string) (kept bool, err error) {
	store, removed := filepath.Join(dir, storeDir), filepath.Join(dir, removedDir)
	if err := os.RemoveAll(removed); err != nil { // of an earlier removal
		return true, err
	}
	if err := os.Rename(store, removed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, err
	}
	if err := os.RemoveAll(removed); err != nil {
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
