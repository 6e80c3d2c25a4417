package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/llm/llmtest"
)

// standardIO are the standard streams of a command.
type standardIO struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// processOptions are the flags of process.
type processOptions struct {
	out    string
	job    string
	format string
	fresh  bool
	limit  int64
	dryRun bool
}

// processFile is the whole of process.
func processFile(soft, hard context.Context, stdio standardIO, cfg *config.Config, input string, o processOptions) (err error) {
	cfg.NATS, cfg.Streams.Partitions = config.NATSConfig{}, 1
	reading, endInput := context.WithCancelCause(soft)
	defer endInput(nil)
	in, err := load.OpenSource(reading, stdio.In, input, o.format)
	if err != nil {
		return err
	}
	defer in.File.Close() //nolint:errcheck // read only
	if err := checkOut(o.out, input); err != nil {
		return config.Invalid(fmt.Errorf("-o %s: %w", o.out, err))
	}
	if _, err := executor.LoadPrompt(cfg); err != nil {
		return config.Invalid(err)
	}
	dir, resumed, cleanUp, err := prepareJob(cfg, in, o)
	if err != nil {
		return err
	}
	log := logging.NewConfigured(cfg, stdio.Err)
	defer logging.Flush(log)
	server, err := newLateServer(soft, cfg, Deps{}, true)
	if err != nil {
		return err
	}
	defer server.close()
	conn, err := natsconn.StartServer(soft, cfg, dir, load.RowBytesMax, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	servers, err := call.Open(cfg, nil, llmtest.Config{})
	if err != nil {
		return err
	}
	defer servers.Close()
	s, err := newStage(cfg, conn, servers, log, stageOptions{ExitOnFatal: true, Console: stdio.Err})
	if err != nil {
		return err
	}
	if resumed {
		s.log.Info("resuming", slog.String("job", dir))
	}
	s.log.Info("started", slog.String("job", dir), slog.String("dashboard", server.start(hard, s)))
	out, closeOut, err := openOut(stdio.Out, o.out)
	if err != nil {
		return err
	}
	p := &pipeline{stage: s, stderr: stdio.Err, source: in.Reader(s.log, int(conn.NC.MaxPayload())-load.MessageOverhead), total: in.Rows, limit: o.limit, out: out, format: writeResult, endInput: endInput, resumed: "the same command goes on where it was"}
	err = errors.Join(p.run(soft, hard), closeOut())
	if err == nil {
		cleanUp()
	}
	return err
}

// prepareJob finds or makes the directory of the job. cleanUp removes it where nothing could ever resume it.
func prepareJob(cfg *config.Config, in *load.Source, o processOptions) (dir string, resumed bool, cleanUp func(), err error) {
	name, err := jobName(o.job, in.Name)
	if err != nil {
		return "", false, nil, config.Invalid(err)
	}
	cleanUp = func() {}
	if in.Name == "-" && o.job == "" {
		name = "stdin-" + call.NewID()[:8]
	}
	id, err := newJobIdentity(cfg, filepath.Base(in.Name), in.Sum)
	if err != nil {
		return "", false, nil, config.Invalid(err)
	}
	dir = filepath.Join(cfg.Data.Dir, name)
	if resumed, err = openJob(dir, name, id, jobMode{fresh: o.fresh, keepReplies: cfg.Rows.Dedupe == "stored"}); err != nil {
		return "", false, nil, err
	}
	if in.Name == "-" && o.job == "" {
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
func openOut(stdout io.Writer, path string) (io.Writer, func() error, error) {
	if path == "" || path == "-" {
		return stdout, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, config.Invalid(err)
	}
	return f, f.Close, nil
}

// writeResult writes a result as one line of JSON.
func writeResult(w io.Writer, r stored.Result) error { return stored.WriteLine(w, r.Body) }
