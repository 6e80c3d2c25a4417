// Package preview shows what would be sent for the rows of a file, and which rows would fail, without a call.
//
// It renders the prompts as a stage does and prints them: [DryRun] those of a job, with an estimate of its tokens and
// cost, [Try] those of several templates side by side. It needs no key, and stores nothing.
package preview

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/llm-stage/stage/llm/row"
)

// Input is the file whose rows are shown.
type Input struct {
	Name   string    // - is Stdin
	Stdin  io.Reader // may be nil where Name is another
	Format rowfile.Spec
	Rows   int64 // how many of the first ones; 0: all
}

// open opens the file. The caller must close File of the source.
func (in *Input) open(ctx context.Context) (*load.Source, error) {
	return load.OpenSource(ctx, in.Stdin, in.Name, in.Format)
}

// each calls f with each row of the source that open has returned.
func (in *Input) each(ctx context.Context, source *load.Source, f func(rowfile.Row) error) error {
	rows := rowfile.NewReader(source.File, source.Layout, load.RowBytesMax-load.MessageOverhead)
	for seen := int64(0); in.Rows == 0 || seen < in.Rows; seen++ {
		row, err := rows.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return config.Invalid(fmt.Errorf("%s: %w", in.Name, err))
		}
		if err := f(row); err != nil {
			return err
		}
	}
	return nil
}

// renderRow renders one row of a file.
func renderRow(p *executor.Prompt, in rowfile.Row) (string, error) {
	if in.Fault != nil {
		return "", errors.New(in.Fault.Problem)
	}
	parsed, err := row.Parse(in.Body)
	if err != nil {
		return "", err
	}
	r, _, err := p.Request(parsed)
	return r.Prompt, err
}
