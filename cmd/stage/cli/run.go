package cli

import (
	"context"
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
// the stage stops at once.
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

	run := func(soft, hard context.Context, cfgs []*config.Config, _ []string) error {
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
	cmd.RunE = flags.runStages(stages, config.NeedCalls, run)
	return cmd
}

func addCancelBatches(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("cancel-batches", false, "at a stop, cancel the open batches of the "+
		"batch lane (STAGE_LANE) at the provider; default: "+
		"they run on, and the next start collects their answers")
}
