package jobs

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// recordFile says how the last run of a job has ended. process writes it as it begins,
// and again as it ends.
const recordFile = "state.json"

// Record is what a run notes about itself beside its store.
type Record struct {
	// State is Running until the run ends. If it is Running and no process has the store
	// open, the run was killed.
	State State `json:"state"`
	Rows  int64 `json:"rows"` // of the input, or -1 if unknown
	// Why is the error that ended the run, or empty.
	Why string `json:"why,omitempty"`
	// Counts are of the whole job. They are nil unless State is Done and the run knew them.
	// Then the store has them.
	Counts *Counts `json:"counts,omitempty"`
}

// Counts are the rows of a job by their outcome.
type Counts struct {
	Rows      int64  `json:"rows"`      // of the input, or loaded so far if its length is unknown
	Results   uint64 `json:"results"`   // that are stored, including those that were replaced
	Succeeded uint64 `json:"succeeded"` // rows whose last result is a success
	Failed    uint64 `json:"failed"`    // rows whose last result is an error
	Pending   uint64 `json:"pending"`   // rows, loaded or published again, without a result yet
}

// Answered is how many rows have a result.
func (c *Counts) Answered() uint64 { return c.Succeeded + c.Failed }

// WriteRecord replaces the record of the job in dir.
func WriteRecord(dir string, r Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, recordFile), append(raw, '\n'))
}

// readRecord returns the record of the job in dir. It is nil if an earlier version has
// run the job, or if its first run was killed before it began.
func readRecord(dir string) (*Record, error) {
	raw, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a job without a record is no error
	}
	if err != nil {
		return nil, err
	}
	r := &Record{}
	return r, json.Unmarshal(raw, r)
}

// Reopen notes that rows of a job that was done may wait again. From now on its counts are
// those of its store.
func Reopen(dir string) error {
	r, err := readRecord(dir)
	if err != nil || r == nil || r.State != Done {
		return err
	}
	return WriteRecord(dir, Record{State: Partial, Rows: r.Rows})
}

// RemoveRecord removes the record of the job in dir, if there is one.
func RemoveRecord(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Judge completes the job by the counts of its store: it sets the counts, and the state if
// the record alone does not show it. For example, a job without a record is done if each
// row has its result. Rows of c is how many are loaded, which is used if the record does
// not know the length of the input.
func (j *Job) Judge(c Counts) {
	r := j.record
	if r != nil && r.Rows >= 0 {
		c.Rows = r.Rows
	}
	j.Counts = &c
	all := c.Pending == 0 && c.Answered() > 0 && int64(c.Answered()) >= c.Rows //nolint:gosec // rows
	switch {
	case j.State == Running:
	case r == nil && all, j.State == Partial && all && r.Rows >= 0 && r.Why == "":
		j.State = Done // for example, a run with --limit has answered the last rows
	case r == nil:
		j.State = Interrupted
	case j.State == Done && !all && c.Rows > 0:
		j.State = Partial
	}
}

// WriteFile replaces a small file as a whole, also where the power fails.
func WriteFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
