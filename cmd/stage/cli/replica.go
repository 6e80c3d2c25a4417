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

// newReplicaCommand makes a replica of the demo with --chaos. It does what run does, but
// it prints the address of its page, and it ends with its standard input. So it never
// outlives the demo, even a demo that was killed. No signal ends it: the terminal sends
// Ctrl-C to the replicas as well, and the demo has to end them in order.
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
		// At the default level of the demo, the log would only repeat what the demo prints.
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
