package cli

import (
	"os"
	"syscall"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/spf13/cobra"
)

// newRunCommand makes stage run, the service: it works until a signal ends it. The first
// signal ends the soft context, and the stage drains. The second ends the hard one, and
// it stops at once. It calls [configFlags.LoadStages] itself, where other commands use
// [configFlags.run], since it also needs the signals that reload keys.
func newRunCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "run",
		Short: "take rows from a stream, send them to the LLM and store ordered results, " +
			"until stopped",
		GroupID: groupWork,
		Args:    cobra.NoArgs,
	}
	newInput := cmd.Flags().Bool("new-input", false, "accept an input stream that was re-created "+
		"since the last claim, and begin with its first row")
	cancelBatches := addCancelBatches(cmd)

	flags := newConfigFlags(cmd, env, nil, nil)
	if env.HangupEnds {
		flags.ends = []os.Signal{syscall.SIGHUP}
	}
	stages := flags.addStages()

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfgs, err := flags.LoadStages(cmd.Context(), *stages, config.NeedCalls)
		if err != nil {
			return err
		}
		soft, hard, stop := env.Contexts(cmd.Context(), flags.ends...)
		defer stop()
		// With an embedded server, the settings do not say how much memory is needed.
		if env.LimitMemory != nil && len(cfgs[0].NATS.URL) > 0 {
			env.LimitMemory(stage.MemoryLimit(cfgs...))
		}

		reloads, stopReloads := env.Reloads()
		defer stopReloads()
		log := logging.NewConfigured(cfgs[0], env.Stderr)
		defer logging.Flush(log)

		deps := stage.Deps{
			MockLLM: llmtest.Config{}.Start,
			Logger:  log,
			Reloads: reloads,
			Options: stage.Options{
				Console: env.Stderr, NewInput: *newInput,
				CancelBatches: *cancelBatches,
			},
		}

		if *stages != "" {
			return stage.RunSeveral(soft, hard, cfgs, deps)
		}
		return stage.Run(soft, hard, cfgs[0], deps)
	}
	return cmd
}

// addCancelBatches adds --cancel-batches.
func addCancelBatches(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("cancel-batches", false, "at a stop, cancel the open batches of the "+
		"batch lane (STAGE_LANE) at the provider; default: "+
		"they run on, and the next start collects their answers")
}
