package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

// processPayloadBytes is the largest message of the server that process embeds: rows of documents are larger than the
// 1 MiB that servers take by default, and 8 MiB is what the server's makers advise at most.
const processPayloadBytes = 8 << 20

// messageOverhead is left for the headers of a row's message.
const messageOverhead = 8 << 10

// processOptions are the flags of process.
type processOptions struct {
	out    string
	job    string
	format string
	fresh  bool
	limit  int64
	dryRun bool
}

func newProcessCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "process IN",
		Short:   "ask the LLM about each row of a file, write ordered results, resumable",
		GroupID: groupWork,
		Args:    cobra.ExactArgs(1),
		Long: "process takes rows from a JSONL or CSV file (or - for standard input) through the whole stage, on a server of its\n" +
			"own, and writes one result a row as JSONL, in the order of the rows, each exactly once. It may be killed and started\n" +
			"again any number of times: the same command goes on where it was, and no reply that was kept is paid for again.",
		Example: "  stage process reviews.jsonl -o out.jsonl --template-file prompt.jinja --llm-model gpt-6-luna --pool-size 32\n" +
			"  stage process reviews.csv --template 'Sentiment of: {{ row.text }}' --llm-provider mock\n" +
			"  stage process reviews.jsonl --template-file prompt.jinja --llm-model gpt-6-luna --dry-run",
	}
	var o processOptions
	cmd.Flags().StringVarP(&o.out, "out", "o", "", "file that the results go to; default: standard output")
	cmd.Flags().StringVar(&o.job, "job", "", "name of the job; needed to resume from standard input")
	cmd.Flags().StringVar(&o.format, "format", "", "format of the input: jsonl or csv; default: by its name")
	cmd.Flags().BoolVar(&o.fresh, "fresh", false, "discard what an earlier run of this job has stored")
	cmd.Flags().Int64Var(&o.limit, "limit", 0, "process the first N rows only; 0: all")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "render the prompts, show the first ones and count; call nobody, store nothing")
	defaults := map[string]string{}
	if isTerminal(env.Stderr) {
		defaults["STAGE_LOG_LEVEL"] = "warn" // the bar says the rest
	}
	flags := newConfigFlags(cmd, env, configFlagsOptions{Defaults: defaults})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := flags.Load(cmd.Context(), NeedCalls)
		if err != nil {
			return err
		}
		if o.limit < 0 {
			return invalid(fmt.Errorf("--limit %d: give a number of rows, or 0 for all", o.limit))
		}
		soft, hard, stop := env.Contexts(cmd.Context())
		defer stop()
		if o.dryRun {
			return dryRun(soft, env, cfg, args[0], o)
		}
		return processFile(soft, hard, env, cfg, args[0], o)
	}
	return cmd
}

// source is the input of a job.
type source struct {
	name   string
	file   io.ReadCloser
	format RowFormat
	sum    string // of the content; empty for standard input
	rows   int64  // -1: not known
}

// openSource opens the input and, where it can be read twice, counts its rows and sums up its content. When ctx ends, so
// do reads of an input that may never end.
func openSource(ctx context.Context, env *Env, name, format string) (*source, error) {
	f, err := rowFormat(name, format)
	if err != nil {
		return nil, invalid(err)
	}
	s := &source{name: name, format: f, rows: -1}
	if name == "-" {
		s.file = io.NopCloser(interruptible(ctx, env.Stdin))
		return s, nil
	}
	file, err := openFile(ctx, name)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		return nil, invalid(err)
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: name a JSONL or CSV file", name)
	}
	if err != nil {
		return nil, invalid(errors.Join(err, file.Close()))
	}
	if !info.Mode().IsRegular() {
		s.file = readCloser{interruptible(ctx, file), file}
		return s, nil
	}
	s.file = file
	sum := sha256.New()
	reader := NewRowReader(io.TeeReader(file, sum), f, processPayloadBytes)
	for s.rows = 0; ; s.rows++ {
		if _, err = reader.Next(); err != nil {
			break
		}
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), file.Close())
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, invalid(errors.Join(fmt.Errorf("%s: %w", name, err), file.Close()))
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.sum = hex.EncodeToString(sum.Sum(nil))
	return s, nil
}

// readCloser reads from one and closes another.
type readCloser struct {
	io.Reader
	io.Closer
}

// openFile opens a file to read it. That of a named pipe waits for somebody who writes to it, and ctx ends the wait.
func openFile(ctx context.Context, name string) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		file, err := os.Open(name)
		done <- opened{file, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// processFile is the whole of process.
func processFile(soft, hard context.Context, env *Env, cfg *Config, input string, o processOptions) (err error) {
	cfg.NATS, cfg.Streams.Partitions = NATSConfig{}, 1
	reading, endInput := context.WithCancelCause(soft)
	defer endInput(nil)
	in, err := openSource(reading, env, input, o.format)
	if err != nil {
		return err
	}
	defer in.file.Close() //nolint:errcheck // read only
	if err := checkOut(o.out, input); err != nil {
		return invalid(fmt.Errorf("-o %s: %w", o.out, err))
	}
	if _, err := loadPrompt(cfg); err != nil {
		return invalid(err)
	}
	dir, resumed, cleanUp, err := prepareJob(cfg, in, o)
	if err != nil {
		return err
	}
	log := newConfiguredLogger(cfg, env.Stderr)
	defer flushLog(log)
	server, err := newLateServer(soft, cfg, Deps{}, true)
	if err != nil {
		return err
	}
	defer server.close()
	conn, err := startServer(soft, cfg, dir, processPayloadBytes, log)
	if err != nil {
		return err
	}
	defer conn.close()
	servers, err := openTargets(cfg, nil, llmtest.Config{})
	if err != nil {
		return err
	}
	defer servers.close()
	s, err := newStage(cfg, conn, servers, log, stageOptions{ExitOnFatal: true, Console: env.Stderr})
	if err != nil {
		return err
	}
	if resumed {
		s.log.Info("resuming", slog.String("job", dir))
	}
	s.log.Info("started", slog.String("job", dir), slog.String("dashboard", server.start(hard, s)))
	out, closeOut, err := openOut(env, o.out)
	if err != nil {
		return err
	}
	p := &pipeline{stage: s, env: env, source: in.reader(s, int(conn.nc.MaxPayload())-messageOverhead), total: in.rows, limit: o.limit, out: out, format: writeResult, endInput: endInput, resumed: "the same command goes on where it was"}
	err = errors.Join(p.run(soft, hard), closeOut())
	if err == nil {
		cleanUp()
	}
	return err
}

// prepareJob finds or makes the directory of the job. cleanUp removes it where nothing could ever resume it.
func prepareJob(cfg *Config, in *source, o processOptions) (dir string, resumed bool, cleanUp func(), err error) {
	name, err := jobName(o.job, in.name)
	if err != nil {
		return "", false, nil, invalid(err)
	}
	cleanUp = func() {}
	if in.name == "-" && o.job == "" {
		name = "stdin-" + newID()[:8]
	}
	id, err := newJobIdentity(cfg, filepath.Base(in.name), in.sum)
	if err != nil {
		return "", false, nil, invalid(err)
	}
	dir = filepath.Join(cfg.Data.Dir, name)
	if resumed, err = openJob(dir, name, id, jobMode{fresh: o.fresh, keepReplies: cfg.Rows.Dedupe == "stored"}); err != nil {
		return "", false, nil, err
	}
	if in.name == "-" && o.job == "" {
		cleanUp = func() { _ = os.RemoveAll(dir) } // its own, made a moment ago under a random name
	}
	return dir, resumed, cleanUp, nil
}

// checkOut says why results can't go to a file, before anything is begun. Opening it, which empties it, must wait until
// the job is known to be this process's alone.
func checkOut(path, input string) error {
	if path == "" || path == "-" {
		return nil
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil {
		return err
	} else if !dir.IsDir() {
		return fmt.Errorf("%s is no directory", filepath.Dir(path))
	}
	out, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // it will be made
	}
	in, err := os.Stat(input)
	switch {
	case out.IsDir():
		return errors.New("that is a directory: name a file")
	case err == nil && out.Mode().IsRegular() && os.SameFile(in, out):
		return errors.New("that is the input, and its rows would be gone: name another file")
	}
	return nil
}

// openOut opens the file that the results go to, anew.
func openOut(env *Env, path string) (io.Writer, func() error, error) {
	if path == "" || path == "-" {
		return env.Stdout, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, invalid(err)
	}
	return f, f.Close, nil
}

// writeResult writes a result as one line of JSON.
func writeResult(w io.Writer, r result) error { return writeLine(w, r.Body) }

// fileRows makes messages of the rows of a file.
type fileRows struct {
	name  string
	rows  *RowReader
	limit int // largest row that a message holds
	// strict makes a row that no message can hold an error.
	strict bool
	log    *slog.Logger
}

// reader reads the source from the beginning.
func (s *source) reader(st *stage, limit int) *fileRows {
	return &fileRows{name: s.name, rows: NewRowReader(s.file, s.format, limit), limit: limit, log: st.log}
}

// skip passes over the rows that an earlier run has loaded.
func (f *fileRows) skip(loaded int64) error {
	for i := range loaded {
		if _, err := f.rows.Next(); err != nil {
			return fmt.Errorf("%s: the job has loaded %d rows of it, and now it has %d (%w): it is another input", f.name, loaded, i, err)
		}
	}
	return nil
}

// read returns the next row. One that no message can hold is replaced by its beginning and the reason.
func (f *fileRows) read() (*nats.Msg, error) {
	row, err := f.rows.Next()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: %w", f.name, err)
		}
		return nil, err
	}
	m := &nats.Msg{Data: row.Body}
	if row.Fault == nil {
		return m, nil
	}
	if f.strict && row.Fault.TooLarge {
		return nil, fmt.Errorf("%s: %w: raise the server's max_payload, or take the row out", f.name, row.Fault)
	}
	f.log.Warn("bad row", slog.String("input", f.name), slog.Int64("line", row.Line), slog.String("problem", row.Fault.Problem))
	if row.Fault.TooLarge {
		m.Data = row.Fault.Head
		m.Header = nats.Header{
			headerRowError: {string(llm.ReasonRowTooLarge)},
			headerRowSize:  {strconv.FormatInt(row.Fault.Size, 10)},
			headerRowLimit: {strconv.Itoa(f.limit)},
		}
	}
	return m, nil
}
