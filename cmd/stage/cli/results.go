package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/erased"
	"github.com/llm-stage/stage/internal/ops/follow"
	"github.com/llm-stage/stage/internal/ops/results"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newResultsCommand makes stage results, which prints stored results: once, one partition
// after the other, or with --follow of all partitions as they are stored.
func newResultsCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "results",
		Short:   "print the stored results as JSONL, each partition in its order",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	r := &resultsCommand{env: env}
	cmd.Flags().StringVarP(&r.out, "out", "o", "",
		"file for the results, as JSONL; default: standard output")
	cmd.Flags().BoolVarP(&r.follow, "follow", "f", false,
		"follow new results of all partitions until interrupted")
	cmd.Flags().BoolVar(&r.o.Failed, "failed", false,
		"only failed rows that no later result replaces")
	cmd.Flags().StringVar(&r.since, "since", "", "only results stored since a time "+
		"(2006-01-02T15:04:05Z) or that long ago (1h); default: all")
	cmd.Flags().IntVar(&r.o.Last, "last", results.All,
		"only the last N results of these; with --follow 0 means only new ones; -1: all")
	cmd.Flags().BoolVar(&r.o.WithMeta, "with-meta", false,
		`print {"meta":…,"result":…}: sequences, partition, status, time, owner, key and headers beside each result`)
	cmd.Flags().IntVar(&r.o.Partition, "partition", results.AllPartitions,
		"only this partition, counted from 0; -1: all")
	r.flags = newStoreFlags(cmd, env)
	r.flags.anyInput = true
	cmd.RunE = r.flags.runOrFollow(&r.follow, r.check, r.print, r.followAll)
	return cmd
}

// resultsCommand has the flags of results. check reads them before anything is opened.
type resultsCommand struct {
	env    *Env
	flags  *storeFlags
	o      results.Options
	out    string
	since  string
	follow bool
}

// check reads the flags. With --last and --follow the partitions are merged by the time at
// which results were stored: the last 10 results of a stage may be of any partition.
func (r *resultsCommand) check(*config.Config) (err error) {
	switch {
	case job.IsTable(r.out):
		return fmt.Errorf("-o %s: results are printed as JSONL: name a file that ends in .jsonl, "+
			"or have stage process write CSV", r.out)
	case r.o.Last < results.All:
		return fmt.Errorf("--last %d: give a number of results, or -1 for all", r.o.Last)
	case r.o.Partition < results.AllPartitions:
		return fmt.Errorf("--partition %d: partitions are counted from 0; -1 means all",
			r.o.Partition)
	}
	r.o.Merged = r.follow || r.o.Last != results.All
	r.o.Since, err = sinceTime(r.since, time.Now())
	return err
}

// print prints the results that are stored now.
func (r *resultsCommand) print(
	ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
) error {
	if err := checkPartition(ctx, js, cfg, r.o.Partition); err != nil {
		return err
	}
	err := r.withPrinter(ctx, cfg,
		func(p *results.Printer, _ *bufio.Writer) error { return p.Print(ctx, js) })
	if err != nil {
		return err
	}
	n, err := erased.Count(ctx, js, cfg)
	if n > 0 {
		terminal.PrintLine(r.env.Stderr,
			"%s erased: stage tail --row shows when, and who has asked for it",
			terminal.Plural(n, "result"))
	}
	return err
}

// followAll prints the stored results, and then each new one until ctx ends.
func (r *resultsCommand) followAll(ctx context.Context, cfg *config.Config) error {
	r.o.Recreated = len(cfg.NATS.URL) == 0
	log := logging.NewConfigured(cfg, r.env.Stderr)
	return r.withPrinter(ctx, cfg, func(p *results.Printer, out *bufio.Writer) error {
		waiting := func() {
			terminal.PrintLine(r.env.Stderr,
				"waiting for a process that serves %s", cfg.Data.Dir)
		}
		// Where more is false no process serves the store, and what it has is printed once.
		show := func(ctx context.Context, js jetstream.JetStream, more bool) error {
			if !more {
				return errors.Join(p.Print(ctx, js), out.Flush())
			}
			return errors.Join(p.Follow(ctx, js, func() {
				terminal.PrintLine(r.env.Stderr, "waiting for stream %s, which does not exist yet",
					cfg.Result.Stream)
			}), out.Flush())
		}
		return follow.Run(ctx, cfg, log, waiting, show)
	})
}

// withPrinter calls f with a printer on the output of the command, and then flushes and
// closes the output.
func (r *resultsCommand) withPrinter(
	ctx context.Context, cfg *config.Config, f func(*results.Printer, *bufio.Writer) error,
) error {
	w, closeOut, err := openOut(r.env.Stdout, r.out)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(stopping.NewWriter(ctx, w), 64<<10)
	return errors.Join(f(results.NewPrinter(cfg, out, r.o), out), out.Flush(), closeOut())
}

// openOut creates the file for the results, or empties it. A path of "" or "-" is stdout.
// The caller must call closeOut.
func openOut(stdout io.Writer, path string) (out io.Writer, closeOut func() error, err error) {
	if path == "" || path == "-" {
		return terminal.JSON(stdout), func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, config.Invalid(err)
	}
	return f, f.Close, nil
}

// checkPartition refuses a partition that nobody has served, and reports a stream that
// does not exist. Otherwise nothing would be printed, as of a stage without results.
func checkPartition(
	ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int,
) error {
	n, err := stored.Partitions(ctx, js, cfg)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return stored.MissingStream(err, cfg.Result.Stream, "STAGE_RESULT_STREAM")
	case err == nil && partition >= n:
		err = config.Invalid(fmt.Errorf("--partition %d: there are %d, counted from 0",
			partition, n))
	}
	return err
}
