package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/job"
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
	flags := newConfigFlags(cmd, env, groupsOfStreams, nil)
	check := func(cfg *config.Config) error {
		if *partition >= cfg.Streams.Partitions || *partition < -1 {
			return fmt.Errorf("--partition %d: there are %d, counted from 0 (STAGE_PARTITIONS)", *partition, cfg.Streams.Partitions)
		}
		if *follow && *partition < 0 && cfg.Streams.Partitions > 1 {
			return errors.New("--follow with more than one partition: name one with --partition")
		}
		return nil
	}
	cmd.RunE = flags.runOnStreams(check, func(ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config) error {
		w, closeOut, err := job.OpenOut(env.Stdout, *out)
		if err != nil {
			return err
		}
		lines := bufio.NewWriterSize(stopping.NewWriter(ctx, w), 64<<10)
		for p := range cfg.Streams.Partitions {
			if err == nil && (*partition < 0 || *partition == p) {
				err = printPartition(ctx, js, cfg, p, lines, *follow)
			}
		}
		return errors.Join(err, lines.Flush(), closeOut())
	})
	return cmd
}

// printPartition writes the results of one partition. Without follow it ends after the last stored result.
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
