package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/ops/verify/chain"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newVerifyCommand makes stage verify. It exits with 0 if the streams prove that every
// row has exactly one result, with 1 if they prove a violation, and with 2 if they prove
// neither, as where events have expired.
func newVerifyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "verify",
		Short:   "prove that every row has exactly one result, in order, and that the audit adds up",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print the report as JSON")
	names := cmd.Flags().StringSlice("chain", nil, "`names` of stages in the order in which rows flow, with commas in between: prove each and the links between them")
	flags := newStoreFlags(cmd, env)
	flags.allow("STAGE_WINDOW")
	refuse := func(*config.Config) error {
		if !cmd.Flags().Changed("chain") {
			return nil
		}
		for _, flag := range []string{"job", config.FlagName("STAGE_NAME")} {
			if cmd.Flags().Changed(flag) {
				return config.Invalid(fmt.Errorf("--chain and --%s: --chain names all stages of a server; give one of the two", flag))
			}
		}
		return chain.CheckNames(*names)
	}
	cmd.RunE = flags.runOnStore(refuse, func(ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config) error {
		var report verified
		var err error
		if cmd.Flags().Changed("chain") {
			report, err = chain.Run(ctx, js, cfg, *names, env.Stderr)
		} else {
			report, err = verify.Run(ctx, js, cfg, env.Stderr)
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return errors.Join(terminal.WriteJSON(env.Stdout, report), report.Err())
		}
		report.WriteText(env.Stdout)
		return report.Err()
	})
	return cmd
}

// verified is what verify reports, of one stage or of a chain.
type verified interface {
	WriteText(w io.Writer)
	Err() error
}
