package job

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/stagetest"
)

// files returns the files below a directory.
func files(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			path, err = filepath.Rel(dir, path)
			paths = append(paths, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestDiscardRemovesWhatStageHasStored(t *testing.T) {
	replies := "jetstream/$G/streams/" + executor.DedupeStream + "/msgs/1.blk"
	for _, tt := range []struct {
		name        string
		keepReplies bool
		want        []string
	}{
		{"all", false, []string{"lock", "mine"}},
		{"all but the replies", true, []string{replies, "lock", "mine"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "j")
			all := []string{"mine", jobs.IdentityFile, replies, "jetstream/$G/streams/ROWS/msgs/1.blk"}
			if !tt.keepReplies {
				all = append(all, "jetstream.removed/$G/streams/ROWS/msgs/1.blk") // of a run that was killed
			}
			for _, path := range all {
				path = filepath.Join(dir, filepath.FromSlash(path))
				stagetest.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)))
			}
			stagetest.Must(t, discard(dir, "j", tt.keepReplies))
			if got := files(t, dir); !slices.Equal(got, tt.want) {
				t.Errorf("got %v left, want %v", got, tt.want)
			}
		})
	}
}

func TestARunningJobIsNotDiscarded(t *testing.T) {
	dir := t.TempDir()
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: dir}))(t)
	defer srv.Stop()
	path := filepath.Join(dir, jobs.IdentityFile)
	stagetest.Must(t, os.WriteFile(path, []byte("{}"), 0o600))
	if err := discard(dir, "j", false); !errors.Is(err, jobs.ErrInUse) {
		t.Errorf("got %v, want %v", err, jobs.ErrInUse)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
