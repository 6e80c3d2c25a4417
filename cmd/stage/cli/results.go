package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/job"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

func newResultsCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "results",
		Short:   "print the stored results as JSONL, in the order of the rows",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
		Example: "  stage results -o out.jsonl\n  stage results --follow --nats-url nats://localhost:4222 --partition 2",
	}
	out := cmd.Flags().StringP("out", "o", "", "file for the results; default: standard output")
	follow := cmd.Flags().Bool("follow", false, "follow new results until interrupted")
	partition := cmd.Flags().Int("partition", -1, "only this partition; default: all, one after the other")
	flags := newConfigFlags(cmd, env, configFlagsOptions{Groups: []string{"Stage", "NATS", "Embedded server", "Streams and subjects"}})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.Load(cmd.Context(), config.NeedNothing)
		if err != nil {
			return err
		}
		if *partition >= cfg.Streams.Partitions || *partition < -1 {
			return config.Invalid(fmt.Errorf("--partition %d: there are %d, counted from 0 (STAGE_PARTITIONS)", *partition, cfg.Streams.Partitions))
		}
		if *follow && *partition < 0 && cfg.Streams.Partitions > 1 {
			return config.Invalid(errors.New("--follow with more than one partition: name one with --partition"))
		}
		soft, _, stop := env.Contexts(cmd.Context())
		defer stop()
		first, last := *partition, *partition
		if first < 0 {
			first, last = 0, cfg.Streams.Partitions-1
		}
		return printResults(soft, env, cfg, *out, first, last, *follow)
	}
	return cmd
}

// printResults writes the results of the partitions first to last. Without follow it ends after the last stored result.
func printResults(ctx context.Context, env *Env, cfg *config.Config, path string, first, last int, follow bool) (err error) {
	log := logging.NewConfigured(cfg, env.Stderr)
	conn, err := natsconn.ConnectReader(ctx, cfg, cfg.Data.Dir, false, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn.NC)
	if err != nil {
		return err
	}
	w, closeOut, err := job.OpenOut(env.Stdout, path)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(stopping.NewWriter(ctx, w), 64<<10)
	defer func() { err = errors.Join(err, out.Flush(), closeOut()) }()
	for p := first; p <= last && err == nil; p++ {
		err = conn.Explain(printPartition(ctx, js, cfg, p, out, follow))
	}
	return err
}

// printPartition writes the results of one partition.
func printPartition(ctx context.Context, js jetstream.JetStream, cfg *config.Config, partition int, out *bufio.Writer, follow bool) error {
	results, err := stored.OpenResults(ctx, js, cfg, partition, follow)
	if err != nil {
		return err
	}
	defer results.Close()
	for {
		r, err := stored.NextResult(ctx, results, time.Second)
		switch {
		case err == nil:
			err = job.WriteResult(out, r)
		case errors.Is(err, stored.ErrNoMore) && follow:
			err = out.Flush()
		case errors.Is(err, stored.ErrNoMore), ctx.Err() != nil && follow: // an interrupt is how it ends
			return nil
		}
		if err != nil {
			return err
		}
	}
}
