package cli

import (
	"os"
	"syscall"

	"github.com/llm-stage/stage/internal/lab/llmtest"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/spf13/cobra"
)

// newRunCommand makes stage run, the service: it works until a signal ends it. The first
// signal ends the soft context, and the stage drains. The second ends the hard one, and
// it stops at once.
func newRunCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run",
		Short:   "take rows from a stream, send them to the LLM and store ordered results, until stopped",
		GroupID: groupWork,
		Args:    cobra.NoArgs,
		Long: "run consumes rows until SIGTERM or SIGINT, or until its terminal closes. Then it drains: it takes and starts no row, finishes\n" +
			"the calls in flight, emits what is contiguous, and hands the partition over. It waits at most a quarter longer than\n" +
			"STAGE_LLM_TIMEOUT. A second signal stops immediately. Without a terminal, or under nohup, SIGHUP makes it read its secrets again.\n" +
			"Without a NATS server (STAGE_NATS_URL, -s or a context) it starts an embedded server on STAGE_DATA_DIR.\n" +
			"With --stages it runs several stages in one process, which share connection and HTTP server. Each stops and fails alone.",
		Example: "  STAGE_LLM_API_KEY=… stage run --nats-url nats://localhost:4222 --llm-model gpt-6-luna --template-file prompt.jinja --pool-size 32\n" +
			"  stage run --llm-provider mock --template 'Echo: {{ row.text }}'\n" +
			"  stage run --stages stages.yaml",
	}
	newInput := cmd.Flags().Bool("new-input", false, "accept an input stream that was re-created since the last claim, and begin with its first row")
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
		if env.LimitMemory != nil && len(cfgs[0].NATS.URL) > 0 { // the memory of an embedded server is unknown
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
			Options: stage.Options{Console: env.Stderr, NewInput: *newInput, CancelBatches: *cancelBatches},
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
	return cmd.Flags().Bool("cancel-batches", false, "at a stop, cancel the open batches of the batch lane (STAGE_LANE) at the provider; default: they run on, and the next start collects their answers")
}
