package jobs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/stagetest"
)

// plant creates the files of a job below dir, each with ten bytes.
func plant(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f))
		stagetest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		text := "0123456789"
		if filepath.Base(path) == "job.json" {
			text = `{"input":"in.csv","provider":"mock","model":"m","bytes":7,"pid":7}`
		}
		stagetest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

func find(t *testing.T, dir string) *jobs.Job {
	t.Helper()
	j := stagetest.Value(jobs.Find(dir, "j"))(t)
	return j
}

const block = "jetstream/$G/streams/ROWS/msgs/1.blk"

func TestJobsAreTheDirectoriesWithAnIdentity(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "b/job.json", "b/"+block, "a/job.json", "notes/text", "file", block)
	list := stagetest.Value(jobs.List(dir))(t)
	if len(list) != 2 || list[0].Name != "a" || list[1].Name != "b" {
		t.Fatalf("got %+v, want a and b", list)
	}
	b := list[1]
	if b.Input != "in.csv" || b.Provider != "mock" || b.Model != "m" || b.State != "" || b.PID != 0 || b.Dir != filepath.Join(dir, "b") {
		t.Errorf("got %+v", b)
	}
	if size := b.Bytes - list[0].Bytes; size != 10 || b.Changed.IsZero() {
		t.Errorf("the store takes %d bytes, want 10; changed %v", size, b.Changed)
	}
	for _, name := range []string{"", ".", "..", "c", "notes", "file", "../" + filepath.Base(dir) + "/a", "a/.", "a/job.json"} {
		if _, err := jobs.Find(dir, name); err == nil {
			t.Errorf("%q: found", name)
		} else if _, ok := errors.AsType[*jobs.NotFoundError](err); !ok {
			t.Errorf("%q: got %v", name, err)
		}
	}
	if list, err := jobs.List(filepath.Join(dir, "nowhere")); err != nil || len(list) > 0 {
		t.Errorf("a directory that does not exist: got %v, %v", list, err)
	}
}

func TestOnlyADirectoryWithStreamsHasAStore(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "jobs/a/job.json", "full/"+block, "bare/jetstream/$G/other")
	for name, want := range map[string]bool{"jobs": false, "full": true, "bare": false, "nowhere": false} {
		if has, err := jobs.HasStore(filepath.Join(dir, name)); err != nil || has != want {
			t.Errorf("%s: got %v, %v; want %v", name, has, err, want)
		}
	}
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: filepath.Join(dir, "new")}))(t)
	defer srv.Stop()
	if has, err := jobs.HasStore(filepath.Join(dir, "new")); err != nil || !has {
		t.Errorf("a server that has no stream yet: got %v, %v", has, err)
	}
}

// A removal that is killed at any moment leaves a job that is whole, or one without a store:
// never a part of a store, which a restart would take for all of it.
func TestARemovedJobIsNeverHalfAStore(t *testing.T) {
	dir := t.TempDir()
	all := []string{"j/job.json", "j/" + block, "j/jetstream.removed/$G/streams/ROWS/msgs/1.blk", "j/lock", "j/nats.json.new", "j/state.json", "j/state.json.new"}
	plant(t, dir, all...)
	if kept, err := jobs.Remove(find(t, dir), 0); kept || err != nil {
		t.Fatalf("kept %v, error %v", kept, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "j")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}

	// It stops in the middle, where something can't be removed.
	plant(t, dir, "j/job.json", "j/"+block, "j/nats.json.new/file")
	if _, err := jobs.Remove(find(t, dir), 0); err == nil || !strings.Contains(err.Error(), "remove job j") {
		t.Errorf("got %v, want an error", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "j", "jetstream")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part of the store is left: %v", err)
	}
	stagetest.Must(t, os.RemoveAll(filepath.Join(dir, "j", "nats.json.new")))
	plant(t, dir, "j/mine", "j/sub/mine")
	if kept, err := jobs.Remove(find(t, dir), 0); !kept || err != nil {
		t.Fatalf("kept %v, error %v", kept, err)
	}
	rest, err := os.ReadDir(filepath.Join(dir, "j"))
	if err != nil || !slices.EqualFunc(rest, []string{"mine", "sub"}, func(e os.DirEntry, want string) bool { return e.Name() == want }) {
		t.Errorf("left are %v, %v", rest, err)
	}
}

func TestAJobInUseIsNotRemoved(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "j/job.json")
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: filepath.Join(dir, "j")}))(t)
	j := find(t, dir)
	if j.State != jobs.Running || j.PID != os.Getpid() {
		t.Errorf("got %+v, want running", j)
	}
	if _, err := jobs.Remove(j, 0); !errors.Is(err, jobs.ErrInUse) || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("got %v, want %v", err, jobs.ErrInUse)
	}
	srv.Stop()
	release, err := natsd.Lock(j.Dir, 0) // by a process that has not published its address yet
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Remove(j, 0); !errors.Is(err, jobs.ErrInUse) {
		t.Errorf("got %v, want %v", err, jobs.ErrInUse)
	}
	release()
	if kept, err := jobs.Remove(j, 0); kept || err != nil {
		t.Errorf("kept %v, error %v", kept, err)
	}
}

func TestADamagedIdentityIsReported(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "j/job.json")
	stagetest.Must(t, os.WriteFile(filepath.Join(dir, "j", "job.json"), []byte(`{"input":`), 0o600))
	if j := find(t, dir); j.Damaged == "" || j.Input != "" {
		t.Errorf("got %+v, want the damage", j)
	}
}

// TestTheStateOfAJob: a record alone says how a run has ended. Of a killed one it says only that
// it began, and of one of an earlier version there is none. What the record leaves open the store
// decides.
func TestTheStateOfAJob(t *testing.T) {
	all := jobs.Counts{Rows: 3, Results: 3, Succeeded: 2, Failed: 1}
	some := jobs.Counts{Rows: 3, Results: 2, Succeeded: 1, Failed: 1, Pending: 1}
	for name, tt := range map[string]struct {
		record      *jobs.Record
		found       jobs.State // by the record
		full, waits jobs.State // by a store in which each row has its result, and by one in which a row waits
	}{
		"no record":          {nil, "", jobs.Done, jobs.Interrupted},
		"killed":             {&jobs.Record{State: jobs.Running, Rows: 3}, jobs.Interrupted, jobs.Interrupted, jobs.Interrupted},
		"interrupted":        {&jobs.Record{State: jobs.Interrupted, Rows: 3, Why: "signal"}, jobs.Interrupted, jobs.Interrupted, jobs.Interrupted},
		"limited":            {&jobs.Record{State: jobs.Partial, Rows: 3}, jobs.Partial, jobs.Done, jobs.Partial},
		"limited, of more":   {&jobs.Record{State: jobs.Partial, Rows: 4}, jobs.Partial, jobs.Partial, jobs.Partial},
		"limited, of any":    {&jobs.Record{State: jobs.Partial, Rows: -1}, jobs.Partial, jobs.Partial, jobs.Partial},
		"failed":             {&jobs.Record{State: jobs.Partial, Rows: 3, Why: "no such model"}, jobs.Partial, jobs.Partial, jobs.Partial},
		"at its ceiling":     {&jobs.Record{State: jobs.Ceiling, Rows: 3}, jobs.Ceiling, jobs.Ceiling, jobs.Ceiling},
		"done":               {&jobs.Record{State: jobs.Done, Rows: 3, Counts: &all}, jobs.Done, jobs.Done, jobs.Partial},
		"done, after repair": {&jobs.Record{State: jobs.Done, Rows: 3}, jobs.Done, jobs.Done, jobs.Partial},
	} {
		dir := t.TempDir()
		plant(t, dir, "j/job.json")
		if tt.record != nil {
			stagetest.Must(t, jobs.WriteRecord(filepath.Join(dir, "j"), *tt.record))
		}
		j := find(t, dir)
		if j.State != tt.found || (j.Counts != nil) != (tt.record != nil && tt.record.Counts != nil) {
			t.Errorf("%s: found %+v, want %q", name, j, tt.found)
		}
		if j.Judge(all); j.State != tt.full || tt.record != nil && tt.record.Rows >= 0 && j.Rows != tt.record.Rows {
			t.Errorf("%s: with all results %q of %d rows, want %q", name, j.State, j.Rows, tt.full)
		}
		j = find(t, dir)
		if j.Judge(some); j.State != tt.waits {
			t.Errorf("%s: while a row waits %q, want %q", name, j.State, tt.waits)
		}
	}
}

// A job that a redrive has touched is counted again, and one that runs is not what its last run
// has noted.
func TestADoneJobThatIsReopenedIsCountedAgain(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "j/job.json")
	path := filepath.Join(dir, "j")
	stagetest.Must(t, jobs.WriteRecord(path, jobs.Record{State: jobs.Done, Rows: 3, Counts: &jobs.Counts{Rows: 3}}))
	stagetest.Must(t, jobs.Reopen(path))
	if j := find(t, dir); j.State != jobs.Partial || j.Counts != nil {
		t.Errorf("reopened: %+v", j)
	}
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: path}))(t)
	defer srv.Stop()
	j := find(t, dir)
	if j.Judge(jobs.Counts{Succeeded: 3}); j.State != jobs.Running || j.Rows != 3 {
		t.Errorf("running: %+v", j)
	}
}
