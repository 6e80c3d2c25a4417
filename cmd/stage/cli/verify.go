package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/ops/verify/chain"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newVerifyCommand makes stage verify. It exits with 0 if the streams prove that every
// row has exactly one result, with 1 if they prove a violation, and with 2 if they prove
// neither, for example because events have expired.
func newVerifyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify",
		Short: "prove that every row has exactly one result, in order, " +
			"and that the audit adds up",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print the report as JSON")
	rootFile := cmd.Flags().String("root", "", "prove that the results go on from a root: "+
		"the `FILE` has what an earlier verify printed, as text or JSON")
	names := cmd.Flags().StringSlice("chain", nil, "`names` of stages in the order in which rows "+
		"flow, with commas in between: prove each and the links between them")

	flags := newStoreFlags(cmd, env)
	flags.allow("STAGE_WINDOW")
	var options verify.Options

	refuse := func(*config.Config) (err error) {
		if cmd.Flags().Changed("root") {
			if options.Roots, err = readRoots(*rootFile); err != nil {
				return config.Invalid(err)
			}
		}
		if !cmd.Flags().Changed("chain") {
			return nil
		}
		if cmd.Flags().Changed("root") {
			return config.Invalid(errors.New("--chain and --root: a root is of one stage; " +
				"run verify for each stage with its root"))
		}
		for _, flag := range []string{"job", config.FlagName("STAGE_NAME")} {
			if cmd.Flags().Changed(flag) {
				return config.Invalid(fmt.Errorf("--chain and --%s: --chain names all stages of a "+
					"server; give one of the two", flag))
			}
		}
		return chain.CheckNames(*names)
	}

	run := func(
		ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
	) error {
		var report verified
		var err error
		if cmd.Flags().Changed("chain") {
			report, err = chain.Run(ctx, js, cfg, *names, env.Stderr)
		} else {
			report, err = verify.RunWith(ctx, js, cfg, options, env.Stderr)
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return errors.Join(terminal.WriteJSON(env.Stdout, report), report.Err())
		}
		report.WriteText(env.Stdout)
		return report.Err()
	}
	cmd.RunE = flags.runOnStore(refuse, run)
	return cmd
}

func readRoots(path string) ([]verify.Root, error) {
	printed, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--root: %w", err)
	}
	roots, err := proof.ReadRoots(printed)
	if err != nil {
		return nil, fmt.Errorf("--root %s: %w", path, err)
	}
	return roots, nil
}

// verified is the report of verify about one stage or a chain.
type verified interface {
	WriteText(w io.Writer)
	Err() error
}
