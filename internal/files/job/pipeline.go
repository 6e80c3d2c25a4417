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

// resultPoll is how long the writer waits for a result before it looks whether it has
// written the last one: all rows may have been loaded meanwhile, or the stage has ended.
const resultPoll = 250 * time.Millisecond

// flushEvery bounds how long a result may stay in the buffer while others follow without
// a pause. A pause flushes it at once.
const flushEvery = time.Second

// restWait is how long the writer reads results at most after the end of the stage or a
// hard stop. It is less than the 2 s after which a [stopping.Writer] gives up, so that what
// was read is still written.
const restWait = time.Second

// errWritten ends the parts of a job once all results are written. It wraps
// [context.Canceled], so that to the stage it is a stop without a reason.
var errWritten = fmt.Errorf("all results are written: %w", context.Canceled)

// Pipeline is a finite job: rows go in at one end, results come out at the other, and the
// stage ends with the last result. Create it as a literal; only package job sets the
// unexported fields. Run it once.
//
// The goroutine of write owns places, text, written, failed and failures until it has
// ended. Then the summary reads them. Only rows and progress are shared, and the subject of
// places, which never changes.
type Pipeline struct {
	Stage  *stage.Stage
	Stderr io.Writer // progress and summary
	Source load.Rows
	Total  int64     // rows in the source, or -1 if unknown
	Out    io.Writer // results
	Format func(io.Writer, stored.Result) error

	// rewrite empties Out, to write it again from the beginning. It is nil if written
	// results can't be taken back.
	rewrite func() error
	retry   *Retry // failed rows to send again, or nil if they stay as they are

	// header writes the lines before the first result. It is nil if there are none.
	header func(ctx context.Context, w io.Writer) error
	limit  int64 // rows to process, or 0 for all
	// endInput ends a read of the source that still waits, for example for a pipe. It is
	// nil if reads end by themselves.
	endInput func(cause error)
	// resume says how to resume an interrupted job, for its error. It is empty if a job
	// can only start over.
	resume string

	resumable bool // another run can find the stored rows and results of this one
	earlier   bool // there was a run before this one

	// unhashed is the Source if it is a pipe: only its rows can show that it is the same
	// as before. Otherwise it is nil.
	unhashed *load.FileRows

	summary string // file for the summary, or "" for none
	// console is where the log shares a terminal with the bar. It is nil if they do not.
	console *terminal.Console
	// flush writes the lines that the log has gathered, before the summary. It may be
	// nil.
	flush func()
	// rest returns the text that shows the rows which failed for a reason, where some
	// were repaired. It may be nil.
	rest func(reason llm.Reason, repaired bool) string

	places   *places
	progress *progress
	rows     atomic.Int64 // how many rows there are, or -1 until all are in the stream
	text     bytes.Buffer // the line of one result
	written  int64        // results in Out, of all runs
	failed   int64        // those of them that are errors
	failures failures
}

// Run loads the rows, runs the stage and writes the results, until each row has its
// result written, or soft or hard ends. It returns nil when all is written.
func (p *Pipeline) Run(soft, hard context.Context) error {
	if err := p.Stage.Prepare(soft); err != nil {
		if soft.Err() != nil { // one cause, in place of an error of each stream
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
	// The results of the first rows are all stored, and only have to be written: a stage
	// would call for later rows, which nobody wants.
	if p.limit > 0 && p.places.rows >= p.limit && len(p.places.pending) == 0 {
		err := p.write(soft, soft)
		p.finish(hard, began)
		return p.verdict(soft, hard, nil, err)
	}
	work, finish := context.WithCancelCause(soft)
	defer finish(nil)
	storing, ended := context.WithCancel(hard)
	defer ended()
	var parts errgroup.Group
	p.start(work, storing, finish, &parts)
	err := p.Stage.Run(work, hard)
	finish(err)
	ended()
	if p.endInput != nil {
		p.endInput(err)
	}
	partErr := parts.Wait()
	p.finish(hard, began)
	err = p.verdict(soft, hard, err, partErr)
	p.printKept(hard, err)
	return err
}

// expected returns how many rows there are to process, or 0 if that is unknown.
func (p *Pipeline) expected() int64 {
	if p.limit > 0 && (p.Total < 0 || p.Total > p.limit) {
		return p.limit
	}
	return max(p.Total, 0)
}

// start starts the parts of the job beside the stage: load, write, the warning about
// keys, and the bar or log. An error of one part ends work, and so the others softly, and
// so does the last result. storing ends with the stage.
func (p *Pipeline) start(
	work, storing context.Context, finish context.CancelCauseFunc, parts *errgroup.Group,
) {
	parts.Go(func() error {
		err := p.load(work)
		if errors.Is(context.Cause(work), errWritten) { // with --limit, no further row is wanted
			return nil
		}
		if err != nil {
			finish(err)
		}
		return err
	})
	parts.Go(func() error {
		err := p.write(work, storing)
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

// verdict returns the error of a run. A hard stop comes before the error of the stage,
// which it has caused; that comes before the errors of the other parts.
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

// load publishes the rows of the source that are not in the stream yet, and then sets how
// many rows there are. With a limit of 100 and 40 stored rows it publishes 60.
func (p *Pipeline) load(ctx context.Context) error {
	cfg, nc := p.Stage.Cfg, p.Stage.Conn.NC()
	l, loaded, err := load.New(ctx, nc, cfg, loadID, "")
	if err != nil {
		return err
	}
	if err := p.skip(ctx, loaded); err != nil {
		return err
	}

	// Below 0, left never reaches 0 and so limits nothing.
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

// finish ends the bar and flushes the log before it prints the summary, so that neither
// of them writes into it.
func (p *Pipeline) finish(hard context.Context, began time.Time) {
	took := time.Since(began)
	p.progress.Finish()
	if p.flush != nil {
		p.flush()
	}
	p.printSummary(hard, took)
}
