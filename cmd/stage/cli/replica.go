package cli

import (
	"log/slog"
	"os"
	"syscall"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/show"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/ops/dashboard"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// replicaCommand is the name of the hidden command below demo.
const replicaCommand = "replica"

// newReplicaCommand makes a replica of the demo with --chaos. It does the same as run,
// but it also reports its page, and it ends with its standard input. So it never outlives
// the demo, even a demo that was killed. A signal does not end it: Ctrl-C is sent to all
// processes of a terminal, and the demo ends its replicas itself.
func newReplicaCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{Use: replicaCommand, Short: "a replica of the demo with --chaos, " +
		"which starts it", Args: cobra.NoArgs, Hidden: true}
	flags := newConfigFlags(cmd, env, nil, nil)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.Load(cmd.Context(), config.NeedCalls)
		if err != nil {
			return err
		}
		_, release := env.subscribe(os.Interrupt, syscall.SIGTERM)
		defer release()
		soft, hard := show.Obey(cmd.Context(), env.Stdin, env.exitSoon)
		listener, err := dashboard.Listen(soft, cfg.HTTP.Addr, true, "STAGE_HTTP_ADDR")
		if err != nil {
			return err
		}
		terminal.PrintLine(env.Stdout, "%s", dashboard.URL(listener))
		log := slog.New(slog.DiscardHandler)
		// At the demo's own level, the log would only repeat the messages of the demo.
		if cfg.Process.LogLevel != demoDefaults["STAGE_LOG_LEVEL"] {
			log = logging.NewConfigured(cfg, env.Stderr)
		}
		defer logging.Flush(log)
		return stage.Run(soft, hard, cfg,
			stage.Deps{
				MockLLM: llmtest.Config{}.Start, Logger: log, Listener: listener,
				Options: stage.Options{Console: env.Stderr},
			})
	}
	return cmd
}
