package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/prove"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newProveCommand makes stage prove, which prints the proof of one row, or checks a proof
// without any stream. A proof that does not hold is an error, with exit code 1.
func newProveCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "prove (--row N | --check FILE)",
		Short:   "print what proves the result of one row, or check that without the streams",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	o := prove.Options{}
	cmd.Flags().Uint64Var(&o.Row, "row", 0,
		"print the proof of the row with this `sequence` in the input stream")
	cmd.Flags().IntVar(&o.Partition, "partition", -1,
		"the row's partition, counted from 0; -1: look in all")
	check := cmd.Flags().String("check", "",
		"check the proof in a `FILE`, and print what it proves; - is standard input")
	rootFile := cmd.Flags().String("root", "", "a root to lead to: the `FILE` has what stage "+
		"verify printed; default: the present end of the results")
	out := cmd.Flags().StringP("out", "o", "", "file for the proof; default: standard output")

	flags := newStoreFlags(cmd, env)
	flags.anyInput = true

	prepare := func(*config.Config) (err error) {
		if o.Row == 0 {
			return config.Invalid(errors.New("--row: give the sequence of a row in the input " +
				"stream, as in stage prove --row 7; or --check FILE"))
		}
		if cmd.Flags().Changed("root") {
			o.Roots, err = readRoots(*rootFile)
		}
		return config.Invalid(err)
	}

	printProof := func(
		ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
	) error {
		file, err := prove.Row(ctx, js, cfg, o)
		if err != nil {
			return err
		}
		w, closeOut, err := openOut(env.Stdout, *out)
		if err != nil {
			return err
		}
		return errors.Join(terminal.WriteJSON(w, file), closeOut())
	}
	run := flags.runOnStore(prepare, printProof)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("check") {
			return run(cmd, args)
		}
		if cmd.Flags().Changed("row") {
			return config.Invalid(errors.New("--row and --check: one makes a proof, " +
				"the other checks one; give one of the two"))
		}
		return checkProof(cmd.Context(), env, *check, *rootFile)
	}
	return cmd
}

// checkProof checks a proof file without any stream.
func checkProof(ctx context.Context, env *Env, path, rootFile string) error {
	text, err := env.readInput(ctx, path)
	if err != nil {
		return config.Invalid(fmt.Errorf("--check: %w", err))
	}
	var roots []proof.Root
	if rootFile != "" {
		if roots, err = readRoots(rootFile); err != nil {
			return config.Invalid(err)
		}
	}
	checked, err := proof.CheckFile(text, roots)
	if err != nil {
		return fmt.Errorf("%s proves nothing: %w", rowfile.InputName(path), err)
	}
	for _, line := range checked.Lines() {
		terminal.PrintLine(env.Stdout, "%s", line)
	}
	return nil
}
