package job

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
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/llm/llmtest"
)

// IO are the standard streams of a command.
type IO struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Options are the flags of process.
type Options struct {
	Out    string
	Job    string
	Format string
	Fresh  bool
	Limit  int64
	DryRun bool
}

// Process is the whole of process.
func Process(soft, hard context.Context, stdio IO, cfg *config.Config, input string, o Options) (err error) {
	cfg.NATS, cfg.Streams.Partitions = config.NATSConfig{}, 1
	reading, endInput := context.WithCancelCause(soft)
	defer endInput(nil)
	in, err := load.OpenSource(reading, stdio.In, input, o.Format)
	if err != nil {
		return err
	}
	defer in.File.Close() //nolint:errcheck // read only
	if err := checkOut(o.Out, input); err != nil {
		return config.Invalid(fmt.Errorf("-o %s: %w", o.Out, err))
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
	server, err := stage.NewHTTPServer(soft, cfg.HTTP.Addr, true)
	if err != nil {
		return err
	}
	defer server.Close()
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
	s, err := stage.New(cfg, conn, servers, log, stage.Options{ExitOnFatal: true, Console: stdio.Err})
	if err != nil {
		return err
	}
	if resumed {
		s.Log.Info("resuming", slog.String("job", dir))
	}
	s.Log.Info("started", slog.String("job", dir), slog.String("dashboard", server.Start(hard, s)))
	out, closeOut, err := OpenOut(stdio.Out, o.Out)
	if err != nil {
		return err
	}
	p := &Pipeline{Stage: s, Stderr: stdio.Err, Source: in.Reader(s.Log, int(conn.NC.MaxPayload())-load.MessageOverhead), Total: in.Rows, limit: o.Limit, Out: out, Format: WriteResult, endInput: endInput, resumed: "the same command goes on where it was"}
	err = errors.Join(p.Run(soft, hard), closeOut())
	if err == nil {
		cleanUp()
	}
	return err
}

// prepareJob finds or makes the directory of the job. cleanUp removes it where nothing could ever resume it.
func prepareJob(cfg *config.Config, in *load.Source, o Options) (dir string, resumed bool, cleanUp func(), err error) {
	name, err := jobName(o.Job, in.Name)
	if err != nil {
		return "", false, nil, config.Invalid(err)
	}
	cleanUp = func() {}
	if in.Name == "-" && o.Job == "" {
		name = "stdin-" + call.NewID()[:8]
	}
	id, err := newJobIdentity(cfg, filepath.Base(in.Name), in.Sum)
	if err != nil {
		return "", false, nil, config.Invalid(err)
	}
	dir = filepath.Join(cfg.Data.Dir, name)
	if resumed, err = openJob(dir, name, id, jobMode{fresh: o.Fresh, keepReplies: cfg.Rows.Dedupe == "stored"}); err != nil {
		return "", false, nil, err
	}
	if in.Name == "-" && o.Job == "" {
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

// OpenOut opens the file that the results go to, anew.
func OpenOut(stdout io.Writer, path string) (io.Writer, func() error, error) {
	if path == "" || path == "-" {
		return stdout, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, config.Invalid(err)
	}
	return f, f.Close, nil
}

// WriteResult writes a result as one line of JSON.
func WriteResult(w io.Writer, r stored.Result) error { return stored.WriteLine(w, r.Body) }
