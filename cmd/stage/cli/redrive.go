package cli

import (
	"context"
	"errors"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/redrive"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newRedriveCommand makes stage redrive, which publishes the rows of failed results
// again. It works on the streams alone and needs no running stage.
func newRedriveCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "redrive",
		Short:   "publish the rows of failed results to the input stream again, as new rows",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	var o redrive.Options
	cmd.Flags().StringSliceVar(&o.Reasons, "reason", nil,
		"only results that failed for these reasons, such as api_call_failed,refused; default: all")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "count the rows, publish nothing")
	asJSON := cmd.Flags().Bool("json", false, "print the counts as JSON")
	flags := newStoreFlags(cmd, env)
	flags.allow("STAGE_RESPONSE_FIELD", "STAGE_ON_UPSTREAM_ERROR")
	run := func(
		ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
	) error {
		// The job is marked before its first row is published. After a kill in between,
		// stage jobs ls would otherwise list it as done, with rows that wait.
		if err := flags.reopen(cfg, o.DryRun); err != nil {
			return err
		}
		r, err := redrive.Run(ctx, js, cfg, o, env.Stderr)
		// The job is marked again: a run may have ended between the first mark and the first
		// row, and have noted the job as done.
		err = errors.Join(err, flags.reopen(cfg, o.DryRun))
		// The report is printed even if the redrive ended early.
		switch {
		case r == nil:
		case *asJSON:
			err = errors.Join(err, terminal.WriteJSON(env.Stdout, r))
		default:
			r.Write(env.Stdout)
		}
		return err
	}
	cmd.RunE = flags.runOnStore(nil, run)
	return cmd
}
