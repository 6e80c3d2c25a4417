package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/operator"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/spf13/cobra"
)

// steerWords are the help of the commands that steer a stage.
var steerWords = map[control.Verb]struct{ short, long string }{
	control.Pause: {
		"have a running stage begin no call, until stage resume",
		"pause has the replicas of a running stage begin no call: calls in flight end, and rows are held. Nothing probes meanwhile. With\n" +
			"--partition no row of that partition begins, whichever of the replicas owns it, and the others go on.\n" +
			"It lasts until stage resume, or until the process ends: a process that starts later does not know of it. To stop a stage for\n" +
			"longer than its processes live, stop them.",
	},
	control.Resume: {
		"end what stage pause or stage drain have asked of a running stage, and probe",
		"resume ends what pause and drain have asked of the replicas of a running stage, or with --partition of that partition. A stage\n" +
			"that is paused for another reason probes at once.",
	},
	control.Probe: {
		"have a paused stage send its next probe now",
		"probe has the replicas of a stage that is paused, because of the provider or what its account may do, send the next probe at\n" +
			"once, or with the next row if none waits: the stage goes on if it succeeds. With --partition the owner of that partition does.",
	},
	control.Drain: {
		"have a replica of a running stage hand over its partitions to others",
		"drain has the replica that --replica names hand over all that it owns to replicas that are ready, once its calls in flight have\n" +
			"ended. The process stays, and takes no partition until stage resume, unless its rows wait and no other replica serves it. With\n" +
			"--partition the owner of that partition hands it over, and may get another for it: the shares stay even.",
	},
}

// steerMaker makes the command for one order.
func steerMaker(verb control.Verb) func(env *Env) *cobra.Command {
	return func(env *Env) *cobra.Command { return newSteerCommand(env, verb) }
}

// newSteerCommand returns the command for one order.
func newSteerCommand(env *Env, verb control.Verb) *cobra.Command {
	words := steerWords[verb]
	s, partition := &steer{env: env, wish: operator.Wish{Verb: verb}}, 0
	cmd := &cobra.Command{
		Use:     string(verb),
		Short:   words.short,
		GroupID: groupWork,
		Args:    cobra.NoArgs,
		Long: words.long + "\n\nA replica obeys only with STAGE_CONTROL=true. It prints what each did. It exits with 1 if one refused or did not answer.\n" +
			"Orders are in the audit, with who asked.",
		Example: fmt.Sprintf("  stage %[1]s%[2]s\n  stage %[1]s --partition 3 -s nats://localhost:4222 --name reviews", verb, map[bool]string{true: " --replica pod-2"}[verb == control.Drain]),
	}
	cmd.Flags().IntVar(&partition, "partition", -1, "`number` of the partition that it is about; default: all")
	cmd.Flags().StringVar(&s.wish.Replica, "replica", "", "the `replica` that it is for: its run id, the begin of it, or its host, as stage status shows them; default: all")
	flags := newConfigFlags(cmd, env, []string{"Stage", groupNATS, "Embedded server"}, nil)
	cmd.RunE = flags.run(config.NeedNothing, func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		if cmd.Flags().Changed("partition") {
			s.wish.Partition = &partition
		}
		switch {
		case s.wish.Replica == "" && cmd.Flags().Changed("replica"): // a variable of a script that is not set must not mean all
			return config.Invalid(errors.New("--replica is empty: name one, as stage status shows them, or leave it out to mean all"))
		case s.wish.Partition != nil && partition < 0:
			return config.Invalid(errors.New("--partition: partitions are numbered from 0"))
		case verb == control.Drain && s.wish.Partition == nil && s.wish.Replica == "":
			return config.Invalid(errors.New("name what to drain: --replica, as stage status shows them, or --partition"))
		}
		conn, err := connectRunning(soft, cfg, logging.NewConfigured(cfg, env.Stderr))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
		return s.run(soft, conn, cfg)
	})
	return cmd
}

// steer sends one order.
type steer struct {
	env  *Env
	wish operator.Wish
}

// run sends the order to the replicas and prints what each has answered. It fails where
// one of them has not done it.
func (s *steer) run(ctx context.Context, conn *natsconn.Conn, cfg *config.Config) error {
	s.wish.By = asker(conn, cfg, s.wish.Verb)
	outcomes, err := operator.Steer(ctx, conn.NC(), cfg.Name, s.wish)
	if err != nil {
		return err
	}
	out := terminal.NewTable(s.env.Stdout)
	out.Line("REPLICA", "HOST", "OUTCOME", "WHAT")
	failed := 0
	for _, o := range outcomes {
		if o.Failed {
			failed++
		}
		out.Line(terminal.OrDash(o.Replica), terminal.OrDash(o.Host), o.Outcome, o.Text)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%s: %d of %s did not do it", s.wish.Verb, failed, terminal.Plural(len(outcomes), "replica"))
	}
	return nil
}

// asker is who runs this command, as far as it can know.
func asker(conn *natsconn.Conn, cfg *config.Config, verb control.Verb) control.By {
	by := control.By{Program: "stage " + string(verb), PID: os.Getpid(), NATSUser: cfg.NATS.User}
	by.Host, _ = os.Hostname() // it is told to people only
	if u, err := user.Current(); err == nil {
		by.User = u.Username
	}
	return operator.Connection(conn.NC(), by)
}
