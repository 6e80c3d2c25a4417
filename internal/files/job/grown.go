package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/llm"
)

// compare returns an error that names the changes since the job was started in dir. An
// input that has only grown at its end, by whole rows, counts as the same one: the job
// continues with the new rows.
func (id identity) compare(
	ctx context.Context, now identity, in *load.Source, dir, name string,
) error {
	why := ""
	// An identity without a length is of an empty input, or of an earlier version, which
	// did not note the length. The hash tells them apart.
	empty := id.Bytes == 0 && id.Content == llm.Hash(nil)
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
	if !in.StrayQuotes { // both readings have the same rows
		id.Quotes = now.Quotes
	}

	changed := id.differences(now)
	if len(changed) == 0 {
		return nil
	}
	if why != "" {
		why = " (the content: " + why + ")"
	}
	return config.Invalid(fmt.Errorf(
		"job %s was started differently: %s changed since%s. Its results are in %s: "+
			"start over with --fresh, which discards them, or give this job another name with --job",
		name, strings.Join(changed, ", "), why, dir))
}

// takeOver writes this identity in place of the one that the job had, since the rows by
// which the input has grown belong to the job now. The job's store must be open, which
// keeps other processes away. A kill leaves one of the two identities, and the same
// command continues with either.
func (id identity) takeOver(then identity, dir string, log *slog.Logger) error {
	if id == then {
		return nil
	}
	if id.Content != then.Content {
		log.Info("the input has grown at its end", slog.String("input", id.Input),
			slog.Int64("bytes", id.Bytes-then.Bytes))
	}
	raw, err := json.MarshalIndent(id, "", "  ")
	if err == nil {
		err = jobs.WriteFile(filepath.Join(dir, jobs.IdentityFile), append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("job %s: %w", filepath.Base(dir), err)
	}
	return nil
}

// skip skips the rows of the source that are in the stream already. A file is known by
// its hash. A pipe has none, so its rows are compared with the stored ones: otherwise a
// job could take the results of other rows for its own.
func (p *Pipeline) skip(ctx context.Context, loaded int64) error {
	if p.unhashed == nil || loaded == 0 {
		return explainAnother(p.Source.Skip(loaded))
	}
	js, err := streams.JetStream(p.Stage.Conn.NC())
	if err != nil {
		return err
	}
	rows, err := stored.OpenReader(ctx, js, p.Stage.Cfg.Input.Stream, p.places.subject,
		math.MaxUint64, false)
	if err != nil {
		return err
	}
	defer rows.Close()
	return explainAnother(p.unhashed.SkipSame(loaded, func() ([]byte, error) {
		m, err := rows.Next(ctx)
		if err != nil || m == nil {
			return nil, err
		}
		return m.Data, nil
	}))
}

// explainAnother adds to the error of another input how to continue.
func explainAnother(err error) error {
	if !errors.Is(err, load.ErrAnotherInput) {
		return err
	}
	return config.Invalid(fmt.Errorf("%w: give the same rows from the first on, "+
		"as tail -n +1 -f does, and then new ones; or start over with --fresh, "+
		"or give this job another name with --job", err))
}
