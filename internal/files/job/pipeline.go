package job

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// resultPoll is how long the writer waits for a result before it checks whether all rows
// are loaded.
const resultPoll = 250 * time.Millisecond

// flushEvery bounds how long a result may stay in the buffer while others follow without
// a pause.
const flushEvery = time.Second

// errWritten ends the parts of a job once all results are written. To the stage that is a
// stop without a reason.
var errWritten = fmt.Errorf("all results are written: %w", context.Canceled)

// Pipeline is a finite job: rows go in at one end, results come out at the other, and the
// stage ends with the last result.
type Pipeline struct {
	Stage  *stage.Stage
	Stderr io.Writer // progress and summary
	Source load.Rows
	Total  int64     // rows in the source; -1: unknown
	Out    io.Writer // results
	Format func(io.Writer, stored.Result) error

	// rewrite empties Out, to write it again from the beginning; nil means that what is
	// written stays.
	rewrite func() error
	retry   *Retry // nil means that failed rows stay as they are

	header   func(ctx context.Context, w io.Writer) error // writes the lines before the first result; nil means that there are none
	limit    int64                                        // rows to process; 0 means all
	endInput func(cause error)                            // ends a read of the source that is under way; nil means reads end by themselves
	resume   string                                       // how to resume an interrupted job, for its error; empty means that it starts over

	resumable bool // another run can find what this one has stored
	earlier   bool // there was a run before this one

	unhashed *load.FileRows // the Source, if only its rows can show that it is the same as before, or nil

	summary string            // file for the summary; empty means that none is written
	console *terminal.Console // of the log, which shares a terminal with the bar; nil means that none does
	flush   func()            // writes what the log has gathered, before the summary; nil means that nothing does
	// rest returns what shows the rows that failed for a reason, where some were
	// repaired; nil means that nothing does.
	rest func(reason llm.Reason, repaired bool) string

	places   *places
	progress *progress
	rows     atomic.Int64 // how many rows there are, once all are in the stream; below 0 before
	text     bytes.Buffer // of one result
	written  int64
	failed   int64
	failures failures
}

// Run loads the rows, runs the stage and writes the results, until each row has its
// result written, or soft or hard ends. It returns nil when all is written.
func (p *Pipeline) Run(soft, hard context.Context) error {
	if err := p.Stage.Prepare(soft); err != nil {
		if soft.Err() != nil { // else every stream's error would say so
			return context.Cause(soft)
		}
		return err
	}
	if err := p.repair(soft); err != nil {
		return p.verdict(soft, hard, nil, err)
	}
	p.rows.Store(-1)
	p.progress = newProgress(hard, p.Stderr, p.Stage, p.expected())
	if p.console != nil {
		p.console.Show(p.progress.Bar)
	}
	began := time.Now()
	if p.limit > 0 && p.places.rows >= p.limit && len(p.places.pending) == 0 { // the stage would call for rows that nobody wants
		err := p.write(soft)
		p.finish(hard, began)
		return p.verdict(soft, hard, nil, err)
	}
	work, finish := context.WithCancelCause(soft)
	defer finish(nil)
	var parts errgroup.Group
	p.start(work, finish, &parts)
	err := p.Stage.Run(work, hard)
	finish(err)
	if p.endInput != nil {
		p.endInput(err)
	}
	partErr := parts.Wait()
	p.finish(hard, began)
	err = p.verdict(soft, hard, err, partErr)
	p.printKept(hard, err)
	return err
}

// expected returns how many rows there are to process, or 0 if it is unknown.
func (p *Pipeline) expected() int64 {
	if p.limit > 0 && (p.Total < 0 || p.Total > p.limit) {
		return p.limit
	}
	return max(p.Total, 0)
}

// start starts the parts of the job beside the stage. An error of one part ends the
// others softly, and so does the last result.
func (p *Pipeline) start(work context.Context, finish context.CancelCauseFunc, parts *errgroup.Group) {
	parts.Go(func() error {
		err := p.load(work)
		if errors.Is(context.Cause(work), errWritten) { // --limit: no further row is wanted
			return nil
		}
		if err != nil {
			finish(err)
		}
		return err
	})
	parts.Go(func() error {
		err := p.write(work)
		if err == nil {
			err = p.settle(work)
		}
		p.progress.ended.Store(err == nil)
		finish(cmp.Or(err, errWritten))
		return err
	})
	parts.Go(func() error { p.checkKey(work); return nil })
	if p.progress.Visible() {
		parts.Go(func() error { p.announceStop(work); return nil })
	} else {
		parts.Go(func() error { p.Stage.LogProgress(work, p.progress.left); return nil })
	}
}

// verdict returns the error of a run: the error of a hard stop, of the stage, or of
// another part.
func (p *Pipeline) verdict(soft, hard context.Context, err, partErr error) error {
	switch {
	case hard.Err() != nil && p.resume != "":
		return fmt.Errorf("%w: %s", context.Cause(hard), p.resume)
	case hard.Err() != nil:
		return context.Cause(hard)
	case err != nil:
		return err
	case soft.Err() != nil && partErr != nil: // a signal after the last result changes nothing
		if p.resume == "" {
			return fmt.Errorf("%w before the end", context.Cause(soft))
		}
		return fmt.Errorf("%w before the end: %s", context.Cause(soft), p.resume)
	}
	return partErr
}

// load publishes the rows of the source that are not in the stream yet, and reports how
// many there are.
func (p *Pipeline) load(ctx context.Context) error {
	cfg, nc := p.Stage.Cfg, p.Stage.Conn.NC()
	l, loaded, err := load.New(ctx, nc, cfg, loadID, "")
	if err != nil {
		return err
	}
	if err := p.skip(ctx, loaded); err != nil {
		return err
	}
	left := int64(-1)
	if p.limit > 0 {
		left = max(0, p.limit-loaded)
	}
	last := loaded
	err = l.Run(ctx, loaded, func() (*nats.Msg, error) {
		if left == 0 {
			return nil, io.EOF
		}
		left--
		return p.Source.Read()
	}, func(n int64) { last = n })
	if err != nil {
		return err
	}
	if p.limit > 0 {
		last = min(last, p.limit)
	}
	p.progress.setTotal(last)
	p.rows.Store(last)
	return nil
}

// finish ends the bar and the log, and prints the summary.
func (p *Pipeline) finish(hard context.Context, began time.Time) {
	took := time.Since(began)
	p.progress.Finish()
	if p.flush != nil {
		p.flush()
	}
	p.printSummary(hard, took)
}
