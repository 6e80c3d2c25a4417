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

// steerShort is the short help of the commands that steer a stage.
var steerShort = map[control.Verb]string{
	control.Pause:  "have a running stage begin no call, until stage resume",
	control.Resume: "end what stage pause or stage drain have asked of a running stage, and probe",
	control.Probe:  "have a paused stage send its next probe now",
	control.Drain:  "have a replica of a running stage hand over its partitions to others",
}

// steerMaker returns the maker of the command for one order: pause, resume, drain or
// probe.
func steerMaker(verb control.Verb) func(env *Env) *cobra.Command {
	return func(env *Env) *cobra.Command { return newSteerCommand(env, verb) }
}

// newSteerCommand makes the command for one order. It needs a running stage that obeys
// orders (STAGE_CONTROL).
func newSteerCommand(env *Env, verb control.Verb) *cobra.Command {
	s, partition := &steer{env: env, wish: operator.Wish{Verb: verb}}, 0
	cmd := &cobra.Command{
		Use:     string(verb),
		Short:   steerShort[verb],
		GroupID: groupWork,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&partition, "partition", -1,
		"`number` of the partition that it is about; default: all")
	cmd.Flags().StringVar(&s.wish.Replica, "replica", "", "the `replica` that it is for: "+
		"its run id, the begin of it, or its host, as stage status shows them; default: all")
	flags := newConfigFlags(cmd, env, []string{"Stage", groupNATS, "Embedded server"}, nil)
	run := func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		if cmd.Flags().Changed("partition") {
			s.wish.Partition = &partition
		}
		switch {
		case s.wish.Replica == "" && cmd.Flags().Changed("replica"):
			// --replica "$ID" with an unset variable must not mean all replicas.
			return config.Invalid(errors.New("--replica is empty: name one, " +
				"as stage status shows them, or leave it out to mean all"))
		case s.wish.Partition != nil && partition < 0:
			return config.Invalid(errors.New("--partition: partitions are numbered from 0"))
		case verb == control.Drain && s.wish.Partition == nil && s.wish.Replica == "":
			return config.Invalid(errors.New("name what to drain: --replica, " +
				"as stage status shows them, or --partition"))
		}
		conn, err := connectRunning(soft, cfg, logging.NewConfigured(cfg, env.Stderr))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
		return s.run(soft, conn, cfg)
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	return cmd
}

// steer sends one order.
type steer struct {
	env  *Env
	wish operator.Wish
}

// run sends the order to the replicas and prints what each has answered. It fails if one
// of them has not obeyed.
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
		return fmt.Errorf("%s: %d of %s did not do it", s.wish.Verb, failed,
			terminal.Plural(len(outcomes), "replica"))
	}
	return nil
}

// asker returns who runs this command, as far as the program can know, for the audit of
// the stage.
func asker(conn *natsconn.Conn, cfg *config.Config, verb control.Verb) control.By {
	by := control.By{Program: "stage " + string(verb), PID: os.Getpid(), NATSUser: cfg.NATS.User}
	by.Host, _ = os.Hostname() // only people read it
	if u, err := user.Current(); err == nil {
		by.User = u.Username
	}
	return operator.Connection(conn.NC(), by)
}
