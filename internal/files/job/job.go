// Package job takes one file from rows to ordered results, and resumes where it was.
// Three parts work at the same time, and the last result ends all of them:
//
//	file --load--> input stream --stage--> results stream --write--> OUT
//
// Both streams are on an embedded server below the job's directory, so that a killed job
// loses nothing: the next run of the same command publishes only rows that are not in the
// input stream, calls only for rows without a result, and writes OUT from the first
// result again. [Process] is the command; the demo uses [Site] and [Pipeline] directly.
//
//	stage-data/reviews/job.json      the settings and the input that the results depend on
//	stage-data/reviews/state.json    how far it is, for stage jobs ls
//	stage-data/reviews/outputs.json  what it has written into which files
//	stage-data/reviews/jetstream     the streams
//
// directory.go, identity.go and grown.go decide whether a directory has the same job.
// pipeline.go is the run: write.go writes the results, with those of rows that were
// published again (repair.go) or erased (erased.go) in their places. output.go and
// outputnotes.go keep OUT whole, and table.go and openaibatch.go are its other forms.
package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"path/filepath"
	"sync"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
)

// IO are the standard streams of a command.
type IO struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Options are the flags of process.
type Options struct {
	Out    string       // file for the results, or "" or "-" for standard output
	Job    string       // name of the job, or "" for one derived from the input
	Format rowfile.Spec // format of the input
	Table  TableOptions // form of the results, if Out is CSV
	Fresh  bool         // discards the stored rows and results of earlier runs
	Limit  int64        // rows to process, or 0 for all
	Force  bool         // replaces Out, even if it holds other data
	Retry  *Retry       // failed rows to send again, or nil

	Summary     string   // file for the summary of the run, or "" for none
	FailOnError *big.Rat // most rows that may fail, in percent of all, or nil for any number
	// Where returns the flags with which stage tail finds the events of the job in dir.
	// Required.
	Where func(dir string) string
	// CancelBatches has a stop cancel the open batches of the batch lane at the provider.
	CancelBatches bool
	Mock          call.MockLLM // see [SiteOptions]

	// LimitMemory is called with the memory that the process needs at most, whenever that
	// changes. It may be nil.
	LimitMemory func(bytes int64)
}

// Process is the command process: it takes the rows of a file through the whole stage on
// an embedded server and writes the results. It drains when soft ends, and stops
// immediately when hard does. It blocks until all that it started has ended. The error is
// nil once each row has its result written, whether or not that is an error, or a
// [FailedRowsError] if more are errors than FailOnError allows.
//
// Everything that can be wrong is checked before the server starts and before the first
// call: the input, the output, the prompt, the columns, the providers' settings, the HTTP
// address, and whether the job in the directory is the same one.
func Process(
	soft, hard context.Context, stdio IO, cfg *config.Config, input string, o Options,
) error {
	if err := o.adjust(cfg); err != nil {
		return err
	}
	// A read of a pipe may wait for ever. It ends with the job: the pipeline calls
	// endInput.
	reading, endInput := context.WithCancelCause(soft)
	defer endInput(nil)
	j, err := o.check(reading, stdio, cfg, input)
	if err != nil {
		return err
	}
	defer j.in.File.Close() //nolint:errcheck // read only

	console := terminal.NewConsole(stdio.Err)
	log := logging.NewConfigured(cfg, console)
	defer logging.Flush(log)
	done := true // nothing has to be kept for another run, or there is nothing yet
	defer func() {
		// Only now has the server stopped, which stores in the directory until then.
		if o.unnamed(input) && done {
			remove(j.dir, log)
		}
	}()
	files := j.in.Beside()
	defer files.Close() //nolint:errcheck // read only

	// From here on there is a server, which the site owns.
	site, err := OpenSite(soft, cfg, j.dir,
		SiteOptions{
			Files: files, MaxPayload: load.RowBytesMax, Mock: o.Mock, Console: stdio.Err,
			Logger: withoutRows(log, console, cfg), CancelBatches: o.CancelBatches,
			Flags: o.Where(j.dir), HTTP: j.http,
		})
	if err != nil {
		return err
	}
	defer site.Close()
	defer limitMemory(hard, site.Stage, o.LimitMemory)()

	if err := j.resume(soft, site.Stage); err != nil {
		return err
	}
	site.Stage.Log.Info("started", slog.String("job", j.dir),
		slog.String("dashboard", site.HTTP.Start(hard, site.Stage.Log, site.Stage)))
	if err := j.out.open(soft); err != nil {
		return err
	}
	p := j.pipeline(site.Stage, stdio.Err, o)
	p.endInput, p.console = endInput, console
	p.resume, p.rest = o.howToResume(input, j.name), o.rest(cfg, input, j.dir)
	p.resumable, p.flush = !o.unnamed(input), func() { logging.Flush(log) }

	// Until the run has ended without an error, a standard input without a name keeps its
	// job: its results are the only copy of the answers that were paid for.
	done = false
	err = j.run(soft, hard, site, p)
	done = err == nil || config.IsInvalid(err)
	if err != nil {
		return err
	}
	return checkFailed(p.failed, p.written, o.FailOnError)
}

// adjust sets what a job on an embedded server needs, whatever the settings say.
func (o *Options) adjust(cfg *config.Config) error {
	if o.Format.Format == string(rowfile.FormatBatch) {
		if err := o.checkBatch(cfg); err != nil {
			return config.Invalid(err)
		}
		cfg.Prompt.Keep.Keep |= batchParts(cfg.LLM.Provider)
	}
	cfg.NATS, cfg.Streams.Partitions = config.NATSConfig{}, 1
	cfg.Result.MaxAge = 0 // the output is written from the results
	cfg.Order.Span = spanOf(cfg, o.Limit)
	return nil
}

// checkBatch reports options that contradict the format of OpenAI's Batch API: its lines
// are whole requests, so there is no prompt to render, and its results have that API's
// form.
func (o *Options) checkBatch(cfg *config.Config) error {
	switch {
	case cfg.Prompt.RequestField == "":
		return fmt.Errorf("--format %s: its lines are whole requests, "+
			"which STAGE_REQUEST_FIELD=body takes: unset the template or the messages that are "+
			"set as well", rowfile.FormatBatch)
	case IsTable(o.Out):
		return fmt.Errorf("-o %s: with --format %s results have the form of that API, "+
			"which is JSONL: name a file that ends in .jsonl", o.Out, rowfile.FormatBatch)
	}
	return nil
}

// unnamed reports whether the job has no name by which another run could resume it: its
// rows are from standard input.
func (o *Options) unnamed(input string) bool { return input == "-" && o.Job == "" }

// checkedJob is a job that has passed all checks that need no server.
type checkedJob struct {
	in        *load.Source      // open
	out       *output           // not open yet
	http      *stage.HTTPServer // its address is reserved
	results   *table            // the form of the results, or nil if Out is no table
	dir, name string
	now       identity
	then      *identity // of an earlier run, or nil
}

// check checks all that [Process] promises. It opens the input and reserves the HTTP
// address, which the caller closes.
func (o *Options) check(
	reading context.Context, stdio IO, cfg *config.Config, input string,
) (_ *checkedJob, err error) {
	in, err := load.OpenSource(reading, stdio.In, input, o.Format)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = in.File.Close() // read only
		}
	}()
	name, err := nameOf(o.Job, in.Name)
	if err != nil {
		return nil, config.Invalid(err)
	}
	dir := filepath.Join(cfg.Data.Dir, name)
	out, err := newOutput(stdio.Out, o.Out, input, dir, cfg.Prompt.ResponseField, o.Force)
	if err != nil {
		return nil, config.Invalid(fmt.Errorf("-o %s: %w", o.Out, err))
	}
	if err := checkSummary(o.Summary, input, out); err != nil {
		return nil, config.Invalid(fmt.Errorf("--summary %s: %w", o.Summary, err))
	}

	prompt, err := executor.LoadPrompt(cfg)
	if err != nil {
		return nil, config.Invalid(err)
	}
	fields, err := o.Table.fields(o.Out, prompt.Base.Schema, cfg.Foreach.Field != "")
	if err != nil {
		return nil, config.Invalid(err)
	}
	o.Table.keep = prompt.MayKeep()
	results, err := newTable(reading, o.Out, in, cfg.Prompt.ResponseField, fields, o.Table)
	if err != nil {
		return nil, err
	}

	// openDir comes last: with --fresh it discards what an earlier run has paid for.
	if _, err := call.Check(cfg); err != nil { //nolint:contextcheck // what an identity reads at start bounds itself
		return nil, config.Invalid(err)
	}
	now, err := newIdentity(cfg, in)
	if err != nil {
		return nil, config.Invalid(err)
	}
	http, err := reserveHTTP(reading, cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			http.Close()
		}
	}()
	then, err := openDir(reading, dir, now, in, o.Fresh, cfg.Rows.Dedupe == "stored")
	if err != nil {
		return nil, err
	}
	return &checkedJob{
		in: in, out: out, http: http, results: results,
		dir: dir, name: name, now: now, then: then,
	}, nil
}

// resume takes over the job of an earlier run, if there was one.
func (j *checkedJob) resume(ctx context.Context, s *stage.Stage) error {
	if j.then == nil {
		return nil
	}
	if err := checkOrder(ctx, s.Conn.NC(), s.Cfg, j.name); err != nil {
		return err
	}
	s.Log.Info("resuming", slog.String("job", j.dir))
	return j.now.takeOver(*j.then, j.dir, s.Log)
}

// pipeline returns what takes the rows through the stage. The output must be open.
func (j *checkedJob) pipeline(s *stage.Stage, stderr io.Writer, o Options) *Pipeline {
	rows := j.in.Reader(s.Log, int(s.Conn.NC().MaxPayload())-load.MessageOverhead)
	p := &Pipeline{
		Stage: s, Stderr: stderr, Source: rows, Total: j.in.Rows,
		Out: j.out.writer(), rewrite: j.out.rewriter(), Format: writeJSONLine,
		limit: o.Limit, retry: o.Retry, summary: o.Summary, earlier: j.then != nil,
	}
	// A pipe has no hash. On a resume its rows are compared with those that are stored.
	if j.in.Sum == "" {
		p.unhashed = rows
	}

	shown := j.out.special != nil && terminal.Is(j.out.special)
	switch {
	case j.results != nil:
		p.Format = j.results.write
		p.header = func(ctx context.Context, w io.Writer) error {
			return j.results.writeHeader(ctx, w, rows)
		}
	case j.in.Layout.Format == rowfile.FormatBatch:
		p.Format = (&batchLines{field: s.Cfg.Prompt.ResponseField, shown: shown}).write
	case shown:
		p.Format = showResult
	}
	return p
}

// run runs the pipeline, closes the output, and records how the job stands.
func (j *checkedJob) run(soft, hard context.Context, site *Site, p *Pipeline) error {
	log := site.Stage.Log
	record(j.dir, jobs.Record{State: jobs.Running, Rows: j.in.Rows}, log)
	err := p.Run(soft, hard)

	site.CloseCalls() // idle connections hold file descriptors, of which the output needs some
	err = errors.Join(err, j.out.close(err == nil))
	record(j.dir, p.record(soft, hard, err), log) // before another process can open the job
	if err == nil && p.limit == 0 && j.in.Grown() {
		log.Warn("the input has grown meanwhile: the same command takes the rest",
			slog.String("input", j.in.Name))
	}
	return err
}

// limitMemory calls limit with the memory that the process needs at most, whenever that
// changes, until stop is called.
func limitMemory(ctx context.Context, s *stage.Stage, limit func(bytes int64)) (stop func()) {
	if limit == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var limiter sync.WaitGroup
	limiter.Go(func() { s.LimitEmbedded(ctx, limit) })
	return func() {
		cancel()
		limiter.Wait()
	}
}

// howToResume says how to continue an interrupted job.
func (o *Options) howToResume(input, name string) string {
	if o.unnamed(input) {
		return fmt.Sprintf("only with --job can standard input be resumed; "+
			"job %s has the results that are stored", name)
	}
	return "the same command resumes where it was"
}

// rest returns the text that shows all rows which failed for a reason. The events of rows
// that were repaired stay in the audit, so where some were, the text says so.
func (o *Options) rest(
	cfg *config.Config, input, dir string,
) func(reason llm.Reason, repaired bool) string {
	return func(reason llm.Reason, repaired bool) string {
		if o.unnamed(input) { // the job is removed when it is done
			return fmt.Sprintf("their results have it in %s_error; "+
				"with --job NAME the job is kept, and stage tail shows it",
				cfg.Prompt.ResponseField)
		}
		which := "all of them: "
		if repaired {
			which = "all of them, and those repaired since: "
		}
		return which + fmt.Sprintf("stage tail --reason %s %s", reason, o.Where(dir))
	}
}
