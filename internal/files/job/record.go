package job

import (
	"context"
	"errors"
	"log/slog"

	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/terminal"
)

// record writes down how far the job in dir is, for stage jobs ls. Without such a record
// the job counts as interrupted.
func record(dir string, r jobs.Record, log *slog.Logger) {
	if err := jobs.WriteRecord(dir, r); err != nil {
		log.Warn("the state of the job is not noted: stage jobs ls will list it as interrupted",
			slog.String("job", dir), slog.Any("error", err))
	}
}

// record returns the record of a run that has ended with err. A nil err means that all
// rows that were asked for are written.
func (p *Pipeline) record(soft, hard context.Context, err error) jobs.Record {
	r := jobs.Record{Rows: p.Total}
	if err != nil {
		r.Why = terminal.OneLine(err.Error())
	}
	switch {
	case errors.Is(err, cost.ErrCeiling):
		r.State = jobs.Ceiling
	case err != nil && (soft.Err() != nil || hard.Err() != nil):
		r.State = jobs.Interrupted
	case err != nil, p.limit > 0 && (p.Total < 0 || p.limit < p.Total):
		r.State = jobs.Partial
	default:
		r.State, r.Rows = jobs.Done, p.written
		if len(p.places.newest) == 0 { // with repaired rows, the store has more results than rows
			failed, written := uint64(p.failed), uint64(p.written) //nolint:gosec // counts
			r.Counts = &jobs.Counts{
				Rows: p.written, Results: written, Succeeded: written - failed,
				Failed: failed,
			}
		}
	}
	return r
}
