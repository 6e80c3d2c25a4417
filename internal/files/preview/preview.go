// Package preview shows the requests for the rows of a file, and the rows that would
// fail, without a call.
//
// It renders the prompts as a stage does. [DryRun] prints the first prompts of a job, with
// an estimate of its tokens, cost and duration. [Try] prints the prompts of several
// templates side by side. Neither needs a key, and nothing is stored.
package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// Input is the file whose rows are shown.
type Input struct {
	Name   string    // - is Stdin
	Stdin  io.Reader // nil unless Name is -
	Format rowfile.Spec
	Rows   int64 // how many of the first rows, or 0 for all
	// Sample is how many rows are taken at random in place of the first ones, in the order
	// of the file, or 0. The same Seed takes the same rows of a file.
	Sample int64
	Seed   uint64
}

// open opens the file. The caller must close File of the source.
func (in *Input) open(ctx context.Context) (*load.Source, error) {
	return load.OpenSource(ctx, in.Stdin, in.Name, in.Format)
}

// Read returns the rows, and the file that they are of, which the caller must close.
func (in *Input) Read(ctx context.Context) (rows []rowfile.Row, source *load.Source, err error) {
	source, err = in.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = in.each(ctx, source, func(row rowfile.Row) error {
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return nil, nil, errors.Join(err, source.File.Close())
	}
	return rows, source, nil
}

// each calls f with each row of the source that open has returned.
func (in *Input) each(ctx context.Context, source *load.Source, f func(rowfile.Row) error) error {
	if in.Sample == 0 {
		return in.first(ctx, source, in.Rows, f)
	}
	// Each row of the file has the same chance: row n replaces one of those that were taken
	// with the probability Sample/n.
	random := rand.New(rand.NewPCG(in.Seed, 0)) //nolint:gosec // the same rows for the same seed
	var taken []rowfile.Row
	n := int64(0)
	err := in.first(ctx, source, 0, func(row rowfile.Row) error {
		n++
		if n <= in.Sample {
			taken = append(taken, row)
		} else if i := random.Int64N(n); i < in.Sample {
			taken[i] = row
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(taken, func(a, b rowfile.Row) int { return cmp.Compare(a.Line, b.Line) })
	for _, row := range taken {
		if err := f(row); err != nil {
			return err
		}
	}
	return nil
}

// first calls f with the first rows of the source, so many at most, or all if most is 0.
func (in *Input) first(ctx context.Context, source *load.Source, most int64, f func(rowfile.Row) error) error {
	rows := rowfile.NewReader(source.File, source.Layout, load.RowBytesMax-load.MessageOverhead)
	for seen := int64(0); most == 0 || seen < most; seen++ {
		row, err := rows.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return config.Invalid(fmt.Errorf("%s: %w", rowfile.InputName(in.Name), err))
		}
		if err := f(row); err != nil {
			return err
		}
	}
	return nil
}

// shownItems is how many elements of a row that fans out are shown.
const shownItems = 3

// calls are what a row is sent as: one call, or one for each element of an array.
type calls struct {
	line  int64
	row   *row.Row
	items *row.Items // nil if the row is one call
}

// callsOf reads one row of a file. The error is why it fails before any call.
func callsOf(cfg *config.ForeachConfig, in rowfile.Row) (*calls, error) {
	if in.Fault != nil {
		return nil, errors.New(in.Fault.Problem)
	}
	parsed, err := row.Parse(in.Body)
	if err != nil {
		return nil, err
	}
	c := &calls{line: in.Line, row: parsed}
	if cfg.Field != "" {
		c.items, err = parsed.Items(cfg.Field, cfg.Max)
	}
	return c, err
}

func (c *calls) count() int {
	if c.items == nil {
		return 1
	}
	return c.items.Len()
}

// render renders the prompt of call i, counted from 0. The text includes the system prompt
// if that is a template, and so differs from row to row. Media are shown by a description.
// A preview is not connected to an object store, so it can't describe the media in one.
func (c *calls) render(ctx context.Context, p *executor.Prompt, i int) (prompt rendered, err error) {
	var r llm.Request
	if c.items == nil {
		r, _, err = p.Request(c.row)
	} else {
		r, _, err = p.ItemRequest(c.items, i)
	}
	if err == nil {
		err = p.Media.Describe(ctx, r.Messages)
	}
	if err == nil {
		err = p.Check(&r)
	}
	return rendered{r.Transcript(r.System != p.Base.System), p.MediaTokens(&r)}, err
}

// Prompt renders the prompt of a row as a person reads it. The error is why the row fails
// before any call.
func Prompt(ctx context.Context, p *executor.Prompt, in rowfile.Row) (string, error) {
	calls, err := callsOf(&config.ForeachConfig{}, in)
	if err != nil {
		return "", err
	}
	prompt, err := calls.render(ctx, p, 0)
	return prompt.text, err
}

// rendered is a prompt as it is shown, and what its media add to its tokens.
type rendered struct {
	text        string
	mediaTokens int64
}

// placeText names a row, as in "line 7", or one of its elements, counted from 0, as in
// "line 7, element 0 of 3".
func placeText(line int64, item *int, items int) string {
	if item == nil {
		return fmt.Sprint("line ", line)
	}
	return fmt.Sprintf("line %d, element %d of %d", line, *item, items)
}

// rest is the line that is printed in place of the calls that are not shown, or "".
func (c *calls) rest() string {
	switch n := c.count(); {
	case n == 0:
		return fmt.Sprintf("--- line %d: no elements, no call", c.line)
	case n > shownItems:
		return fmt.Sprintf("--- line %d: %s", c.line, terminal.Plural(n-shownItems, "more element"))
	}
	return ""
}
