package job

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jobs"
	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/llm"
)

// compare returns an error that names what has changed since the job of that name was started in dir. An input that has
// grown at its end by whole rows is the same one.
func (id identity) compare(ctx context.Context, now identity, in *load.Source, dir, name string) error {
	why := ""
	empty := id.Bytes == 0 && id.Content == llm.Hash(nil) // else an earlier version has not noted how long it was
	if (id.Bytes > 0 || empty) && id.Content != now.Content {
		var same bool
		var err error
		if same, why, err = in.Extends(ctx, id.Bytes, id.Content); err != nil {
			return fmt.Errorf("compare the input with that of job %s: %w", name, err)
		}
		if same {
			id.Content = now.Content
		}
	}
	changed := id.differences(now)
	if len(changed) == 0 {
		return nil
	}
	if why != "" {
		why = " (the content: " + why + ")"
	}
	return config.Invalid(fmt.Errorf(
		"job %s was started differently: %s changed since%s. Its results are in %s: start over with --fresh, which discards them, or give this job another name with --job",
		name, strings.Join(changed, ", "), why, dir))
}

// takeOver writes the identity of a job in the place of the one that it had: the rows that its input has grown by belong
// to it. The job's store must be open, which keeps others away. A kill leaves one of the two, and with either of them the
// same command goes on.
func (id identity) takeOver(then identity, dir string, log *slog.Logger) error {
	if id == then {
		return nil
	}
	if id.Content != then.Content {
		log.Info("the input has grown at its end", slog.String("input", id.Input), slog.Int64("bytes", id.Bytes-then.Bytes))
	}
	raw, err := json.MarshalIndent(id, "", "  ")
	if err == nil {
		err = writeFile(filepath.Join(dir, jobs.IdentityFile), append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("job %s: %w", filepath.Base(dir), err)
	}
	return nil
}
