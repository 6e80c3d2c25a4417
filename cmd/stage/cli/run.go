package cli

import (
	"context"
	"os"
	"syscall"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/spf13/cobra"
)

func newRunCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run",
		Short:   "take rows from a stream, send them to the LLM and store ordered results, until stopped",
		GroupID: groupWork,
		Args:    cobra.NoArgs,
		Long: "run consumes rows until SIGTERM or SIGINT, or until its terminal closes. Then it drains: it takes and starts no row, finishes\n" +
			"the calls in flight within STAGE_STOP_TIMEOUT, emits what is contiguous, and hands the partition over. A second signal stops\n" +
			"immediately. Without a terminal, or under nohup, SIGHUP makes it read its secrets again.\n" +
			"Without a NATS server (STAGE_NATS_URL, -s or a context) it starts an embedded server on STAGE_DATA_DIR.",
		Example: "  STAGE_LLM_API_KEY=… stage run --nats-url nats://localhost:4222 --llm-model gpt-6-luna --template-file prompt.jinja --pool-size 32\n" +
			"  stage run --llm-provider mock --template 'Echo: {{ row.text }}'",
	}
	newInput := cmd.Flags().Bool("new-input", false, "accept an input stream that was re-created since the last claim, and begin with its first row")
	flags := newConfigFlags(cmd, env, nil, nil)
	if env.HangupEnds {
		flags.ends = []os.Signal{syscall.SIGHUP}
	}
	cmd.RunE = flags.run(config.NeedCalls, func(soft, hard context.Context, cfg *config.Config, _ []string) error {
		if env.LimitMemory != nil && len(cfg.NATS.URL) > 0 { // the memory of an embedded server is unknown
			env.LimitMemory(stage.MemoryLimit(cfg))
		}
		reloads, stopReloads := env.Reloads()
		defer stopReloads()
		log := logging.NewConfigured(cfg, env.Stderr)
		defer logging.Flush(log)
		return stage.Run(soft, hard, cfg, stage.Deps{
			Logger:  log,
			Reloads: reloads,
			Options: stage.Options{Console: env.Stderr, NewInput: *newInput},
		})
	})
	return cmd
}
