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
		Long: "verify proves a finished or running job from its streams alone. Every row of the input up to the high-water mark must\n" +
			"have exactly one result, in stream order; every result the row event of its owner; and calls, capacity retries, tokens\n" +
			"and cost must add up between call events, row events and the summaries at the end of runs. Rows above the high-water\n" +
			"mark are pending, not lost. With STAGE_ORDER=key or none the order is that which the claims in the results name, the mark\n" +
			"is the low-water mark, and rows above it may have their results, too. Rows that are no longer in the input (expired, or acked on a work queue or interest stream)\n" +
			"are checked against the audit. Messages that a stream dropped by its own age or limits have expired, which is noted; messages\n" +
			"that must have been purged or deleted (old results, an audit younger than its max age) can't be checked, which the exit\n" +
			"code shows. It changes nothing, and needs a few bytes of memory per row.\n\n" +
			"With --chain it proves stages in a row, each of which reads the results of the one before it: each stage, and that every\n" +
			"result is made from the row that it names (by the hash of the row's variables, the members that it has kept, and the first\n" +
			"row of the chain), down to the input of the first. The streams of each stage are those of its last run in the audit.\n\n" +
			"Exit code: 0 proven, 1 a violation, with the rows named, 2 it cannot tell.",
		Example: "  stage verify --nats-url nats://localhost:4222\n" +
			"  stage verify --json --job reviews.jsonl-1a2b3c4d\n" +
			"  stage verify --chain extract,judge,write",
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
