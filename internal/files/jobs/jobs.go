// Package jobs finds the jobs on files below a data directory, with their size and state,
// and removes them.
//
// A directory that holds job.json is a job, which [List] and [Find] find. Its [Record] says
// how its last run ended. Where that is not enough, [Job.Judge] takes the counts of its
// store. Package job writes job.json, the record and the store.
package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
)

const (
	// IdentityFile is in the directory of each job, and in no other one.
	IdentityFile = "job.json"
	// StoreDir is where the embedded server keeps its streams, below the directory of a
	// job or of a stage.
	StoreDir = "jetstream"
	// removedDir is the store of a job while it is being removed.
	removedDir = "jetstream.removed"
	lockFile   = "lock"
)

// Reserved are names that no job may have. A stage with the same data directory puts files
// of its embedded server there, under these names.
var Reserved = []string{StoreDir, lockFile, "nats.json", "nats.json.new"}

// Job is one job as its directory shows it.
type Job struct {
	Name     string    `json:"job"`
	Dir      string    `json:"directory"`
	Input    string    `json:"input"` // the input's file name; "-" for standard input
	Provider string    `json:"provider"`
	Model    string    `json:"model"`
	Damaged  string    `json:"damaged,omitempty"` // which of its files can't be read
	State    State     `json:"state"`
	Why      string    `json:"why,omitempty"`    // the error that ended its last run
	PID      int       `json:"pid,omitempty"`    // of the process that has it open
	InUse    bool      `json:"in_use,omitempty"` // that process only reads it, and ends soon
	Bytes    int64     `json:"bytes"`            // of all files in the directory
	Changed  time.Time `json:"changed"`          // when the last of them was written
	*Counts            // nil if only the store has them, see [Job.Judge]

	record *Record // nil if there is none
}

// State is how far a job is. It is empty if only the store shows that, see [Job.Judge].
type State string

// The states of a job.
const (
	Done        State = "done"        // each row has its result
	Partial     State = "partial"     // rows are left, by --limit or after an error
	Running     State = "running"     // a process works on it
	Ceiling     State = "ceiling"     // STAGE_MAX_COST_USD was reached
	Interrupted State = "interrupted" // a signal has stopped it, or it was killed
)

// NotFoundError is the error of a name that no job has.
type NotFoundError struct {
	Dir, Name string
}

// Error names the job and the directory.
func (e *NotFoundError) Error() string { return fmt.Sprintf("there is no job %q in %s", e.Name, e.Dir) }

// List returns the jobs below a data directory, sorted by name. It returns none if the
// directory does not exist.
func List(dir string) (list []Job, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		job, err := Find(dir, e.Name())
		if _, no := errors.AsType[*NotFoundError](err); no {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, *job)
	}
	return list, nil
}

// Find returns one job. The error is a [*NotFoundError] if there is none of that name.
func Find(dir, name string) (*Job, error) {
	job := &Job{Name: name, Dir: filepath.Join(dir, name)}
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." {
		return nil, &NotFoundError{Dir: dir, Name: name}
	}
	raw, err := os.ReadFile(filepath.Join(job.Dir, IdentityFile))
	switch {
	case errors.Is(err, fs.ErrNotExist), isNotDir(job.Dir):
		return nil, &NotFoundError{Dir: dir, Name: name}
	case err != nil:
		job.Damaged = err.Error()
	default:
		var id struct{ Input, Provider, Model string }
		if err := json.Unmarshal(raw, &id); err != nil {
			job.Damaged = err.Error()
		}
		job.Input, job.Provider, job.Model = id.Input, id.Provider, id.Model
	}
	if err := job.readState(); err != nil && job.Damaged == "" {
		job.Damaged = err.Error() // one that can't be read must not hide the others
	}
	return job, job.measure()
}

// readState reads what the record says of the job, and whether a process has it open.
func (j *Job) readState() (err error) {
	if j.record, err = readRecord(j.Dir); err != nil {
		j.record = nil
	}
	if r := j.record; r != nil {
		j.State, j.Why, j.Counts = r.State, r.Why, r.Counts
		if r.State == Running { // unless a process has it open, which is found next
			j.State = Interrupted
		}
	}
	addr, running, discoverErr := natsd.Discover(j.Dir)
	if running {
		j.PID, j.InUse = addr.PID, addr.Command
		if !j.InUse {
			j.State, j.Why, j.Counts = Running, "", nil
		}
	}
	return errors.Join(err, discoverErr)
}

// isNotDir reports whether the path leads to a file.
func isNotDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// measure adds up the sizes of a job's files. The files of a running job come and go
// meanwhile.
func (j *Job) measure() error {
	dir, err := filepath.EvalSymlinks(j.Dir) // it may be on another disk
	if err != nil {
		return fmt.Errorf("size of job %s: %w", j.Name, err)
	}
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				j.Bytes += info.Size()
				if info.ModTime().After(j.Changed) && e.Name() != lockFile {
					j.Changed = info.ModTime()
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("size of job %s: %w", j.Name, err)
	}
	return nil
}

// HasStore reports whether an embedded server has stored streams in the directory, or
// runs there. A server that is started on any other directory would leave an empty store.
func HasStore(dir string) (bool, error) {
	accounts, err := os.ReadDir(filepath.Join(dir, StoreDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, a := range accounts {
		streams, err := os.ReadDir(filepath.Join(dir, StoreDir, a.Name(), "streams"))
		if err == nil && len(streams) > 0 {
			return true, nil
		}
	}
	_, running, err := natsd.Discover(dir)
	return running, err
}
