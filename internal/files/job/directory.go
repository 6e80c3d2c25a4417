package job

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/files/load"
)

// discardWait is how long --fresh waits for another command to close the store. A job that
// is resumed waits as long, in package natsconn.
const discardWait = 10 * time.Second

// names are the names that jobs and loads may have.
var names = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ValidName reports whether a job may have the name: 1 to 64 letters, digits and . _ -,
// not dots alone.
func ValidName(name string) bool {
	return names.MatchString(name) && strings.Trim(name, ".") != ""
}

// StoreOf returns the directory of a job's store: of the job with the given name, or of
// the job that process makes of the input by default. It is "" for a standard input
// without a name, since nothing can find that job again.
func StoreOf(cfg *config.Config, given, input string) (string, error) {
	if given == "" && input == "-" {
		return "", nil
	}
	name, err := nameOf(given, input)
	if err != nil {
		return "", config.Invalid(err)
	}
	return filepath.Join(cfg.Data.Dir, name), nil
}

// nameOf returns the name of a job: the given one, or one made of the input's name and a
// hash of its path, so that two files of the same name in different directories are two
// jobs. For example, reviews.jsonl becomes reviews.jsonl-1f3a90c2. Standard input gets a
// random name, which nothing can resume.
func nameOf(given, input string) (string, error) {
	switch {
	case slices.Contains(jobs.Reserved, given):
		return "", fmt.Errorf("--job %q: a stage keeps a file of its own under that name: "+
			"give another", given)
	case ValidName(given):
		return given, nil
	case given != "":
		return "", fmt.Errorf("--job %q: give a name of letters, digits and . _ -, at most 64",
			given)
	case input == "-":
		return "stdin-" + call.NewID()[:8], nil
	}
	path, err := filepath.Abs(input)
	if err != nil {
		return "", err
	}

	// The name is also that of a directory, so characters which a file system might not
	// take are replaced, and it is cut.
	base := strings.Map(func(r rune) rune {
		if names.MatchString(string(r)) {
			return r
		}
		return '_'
	}, filepath.Base(path))
	sum := sha256.Sum256([]byte(path))
	return base[:min(len(base), 48)] + "-" + hex.EncodeToString(sum[:4]), nil
}

// discardStore removes the streams of a job. With keepReplies it leaves the stream of
// replies that STAGE_DEDUPE=stored reuses, so that a rerun costs nothing.
func discardStore(dir string, keepReplies bool) error {
	if !keepReplies {
		return jobs.RemoveStore(dir)
	}
	streams, err := filepath.Glob(filepath.Join(dir, jobs.StoreDir, "*", "streams", "*"))
	errs := []error{err}
	for _, path := range streams {
		if filepath.Base(path) != executor.DedupeStream {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// openDir creates the directory of a job, or checks that the existing one belongs to the
// same job, and returns the identity that it has. With fresh it discards an earlier run,
// but with keepReplies not the replies that are reused.
func openDir(
	ctx context.Context, dir string, now identity, in *load.Source, fresh, keepReplies bool,
) (then *identity, err error) {
	path, name := filepath.Join(dir, jobs.IdentityFile), filepath.Base(dir)
	raw, err := os.ReadFile(path)
	switch {
	case err == nil && !fresh:
		then = &identity{}
		if err := json.Unmarshal(raw, then); err != nil {
			return nil, config.Invalid(fmt.Errorf("%s is damaged (%w): start over with --fresh",
				path, err))
		}
		return then, then.compare(ctx, now, in, dir, name)
	case err == nil:
		err = discard(dir, name, keepReplies)
	case errors.Is(err, os.ErrNotExist):
		err = nil
	default:
		err = fmt.Errorf("job %s: %w", name, err)
	}
	if err == nil {
		err = createDir(dir, name, now)
	}
	return nil, err
}

// discard removes an earlier run of the job, but only the files that this program has
// created: a user may have put others there.
func discard(dir, name string, keepReplies bool) error {
	release, err := jobs.Lock(dir, discardWait)
	if errors.Is(err, jobs.ErrInUse) {
		return err
	}
	if err == nil {
		defer release()
		err = errors.Join(discardStore(dir, keepReplies), jobs.RemoveRecord(dir),
			os.Remove(filepath.Join(dir, jobs.IdentityFile)))
	}
	if err != nil {
		return fmt.Errorf("discard job %s: %w", name, err)
	}
	return nil
}

// remove removes the job of a standard input that has no name, since nothing can resume
// it.
func remove(dir string, log *slog.Logger) {
	if _, err := jobs.Remove(&jobs.Job{Name: filepath.Base(dir), Dir: dir},
		discardWait); err != nil {
		log.Warn("the job stays, though nothing can resume it", slog.String("job", dir),
			slog.Any("error", err))
	}
}

// createDir creates the directory of a new job, with its identity.
func createDir(dir, name string, id identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, jobs.IdentityFile), append(raw, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("job %s: %w", name, err)
	}
	return nil
}
