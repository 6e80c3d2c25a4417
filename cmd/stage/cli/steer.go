package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/control"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/replicas"
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

// newSteerCommand returns the command for one order.
func newSteerCommand(env *Env, verb control.Verb) *cobra.Command {
	words := steerWords[verb]
	s := &steer{env: env, verb: verb}
	cmd := &cobra.Command{
		Use:     string(verb),
		Short:   words.short,
		GroupID: groupWork,
		Args:    cobra.NoArgs,
		Long: words.long + "\n\nA replica obeys only with STAGE_CONTROL=true. It prints what each did. It exits with 1 if one refused or did not answer.\n" +
			"Orders are in the audit, with who asked.",
		Example: fmt.Sprintf("  stage %[1]s%[2]s\n  stage %[1]s --partition 3 -s nats://localhost:4222 --name reviews", verb, map[bool]string{true: " --replica pod-2"}[verb == control.Drain]),
	}
	cmd.Flags().IntVar(&s.partition, "partition", -1, "`number` of the partition that it is about; default: all")
	cmd.Flags().StringVar(&s.replica, "replica", "", "the `replica` that it is for: its run id, the begin of it, or its host, as stage status shows them; default: all")
	flags := newConfigFlags(cmd, env, []string{"Stage", groupNATS, "Embedded server"}, nil)
	cmd.RunE = flags.run(config.NeedNothing, func(soft, _ context.Context, cfg *config.Config, _ []string) error {
		s.onePartition = cmd.Flags().Changed("partition")
		switch {
		case s.onePartition && s.partition < 0:
			return config.Invalid(errors.New("--partition: partitions are numbered from 0"))
		case verb == control.Drain && !s.onePartition && s.replica == "":
			return config.Invalid(errors.New("name what to drain: --replica, as stage status shows them, or --partition"))
		}
		conn, err := connectRunning(soft, cfg, logging.NewConfigured(cfg, env.Stderr))
		if err != nil {
			return err
		}
		defer conn.Close()
		return s.run(soft, conn, cfg)
	})
	return cmd
}

// steer sends one order.
type steer struct {
	env          *Env
	verb         control.Verb
	partition    int
	onePartition bool
	replica      string
}

// outcome is a line of the table.
type outcome struct {
	replica replicas.Replica
	what    string
	text    string
	failed  bool
}

func (s *steer) run(ctx context.Context, conn *natsconn.Conn, cfg *config.Config) error {
	whole := replicas.Merge(replicas.Ask(ctx, conn.NC, cfg.Name, nil), nil, time.Now())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := whole.Nobody(replicas.Subject(cfg.Name)); err != nil {
		return err
	}
	if s.onePartition && s.partition >= whole.PartitionCount {
		return fmt.Errorf("there is no partition %d: stage %s has %s, numbered from 0", s.partition, cfg.Name, terminal.Plural(whole.PartitionCount, "partition"))
	}
	chosen, err := choose(&whole, s.replica)
	if err != nil {
		return err
	}
	if s.onePartition && (s.verb == control.Drain || s.verb == control.Probe) {
		if chosen, err = owner(&whole, s.partition, chosen); err != nil {
			return err
		}
	}
	order := control.Order{Verb: s.verb, By: asker(conn, cfg, s.verb)}
	if s.onePartition {
		order.Partition = &s.partition
	}
	var lines []outcome
	for _, r := range chosen {
		switch {
		case r.Status == replicas.Unreadable:
			lines = append(lines, outcome{r, "not asked", r.Note, true})
		case !r.Control:
			lines = append(lines, outcome{r, "refused", "STAGE_CONTROL is off there: set it to true, and restart it", true})
		default:
			order.Replicas = append(order.Replicas, r.Replica)
		}
	}
	if len(order.Replicas) > 0 {
		answers, err := control.Send(ctx, conn.NC, cfg.Name, order)
		if err != nil {
			return fmt.Errorf("%s of stage %s: %w", s.verb, cfg.Name, err)
		}
		for _, r := range chosen {
			if slices.Contains(order.Replicas, r.Replica) {
				lines = append(lines, describe(r, answers, cfg.Name))
			}
		}
	}
	return s.print(lines)
}

// describe is what became of the order at a replica.
func describe(r replicas.Replica, answers map[string]control.Answer, stage string) outcome {
	a, ok := answers[r.Replica]
	if !ok {
		return outcome{r, "no answer", fmt.Sprintf("it may have been done or not, see stage status: does it still run, and may its NATS user subscribe to %s", control.Subject(stage)), true}
	}
	return outcome{r, string(a.Outcome), a.Text, a.Outcome == control.Refused}
}

// print prints what each replica did. The error says how many did not.
func (s *steer) print(lines []outcome) error {
	slices.SortFunc(lines, func(a, b outcome) int { return strings.Compare(a.replica.Replica, b.replica.Replica) })
	out := tabwriter.NewWriter(s.env.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "REPLICA\tHOST\tOUTCOME\tWHAT") //nolint:errcheck // Flush reports it
	failed := 0
	for _, l := range lines {
		if l.failed {
			failed++
		}
		cells := []string{terminal.OrDash(l.replica.Replica), terminal.OrDash(l.replica.Host), l.what, l.text}
		for i := range cells {
			cells[i] = terminal.OneLine(cells[i])
		}
		fmt.Fprintln(out, strings.Join(cells, "\t")) //nolint:errcheck // Flush reports it
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%s: %d of %s did not do it", s.verb, failed, terminal.Plural(len(lines), "replica"))
	}
	return nil
}

// owner returns the owner of a partition, if it is one of the replicas that were chosen.
func owner(whole *replicas.Whole, partition int, chosen []replicas.Replica) ([]replicas.Replica, error) {
	p := &whole.Partitions[partition]
	if p.Replica == "" {
		return nil, fmt.Errorf("no replica owns partition %d: it moves, or no row waits there; see stage status", partition)
	}
	i := slices.IndexFunc(chosen, func(r replicas.Replica) bool { return r.Replica == p.Replica })
	if i < 0 {
		return nil, fmt.Errorf("that replica does not own partition %d: %s on %s does", partition, p.Replica, terminal.OrDash(p.Host))
	}
	return chosen[i : i+1], nil
}

// choose returns the replicas that an order is for: those that name means, or all that answer.
func choose(whole *replicas.Whole, name string) (chosen []replicas.Replica, err error) {
	var known []string
	for _, r := range whole.Replicas {
		if r.Status == replicas.Missed {
			continue
		}
		known = append(known, r.Replica+" on "+terminal.OrDash(r.Host))
		if name == "" || r.Replica == name || r.Host == name {
			chosen = append(chosen, r)
		}
	}
	if chosen == nil && name != "" {
		for _, r := range whole.Replicas {
			if r.Status != replicas.Missed && strings.HasPrefix(r.Replica, strings.ToUpper(name)) {
				chosen = append(chosen, r)
			}
		}
	}
	switch {
	case chosen == nil:
		return nil, fmt.Errorf("no replica %q answers: there are %s", name, strings.Join(known, ", "))
	case name != "" && len(chosen) > 1:
		return nil, fmt.Errorf("%q means %d replicas: give the run id of one, of %s", name, len(chosen), strings.Join(known, ", "))
	}
	return chosen, nil
}

// asker is who runs this command, as far as it can know.
func asker(conn *natsconn.Conn, cfg *config.Config, verb control.Verb) control.By {
	by := control.By{Program: "stage " + string(verb), PID: os.Getpid(), NATSUser: cfg.NATS.User, Server: conn.NC.ConnectedServerName()}
	by.Host, _ = os.Hostname() // it is told to people only
	if u, err := user.Current(); err == nil {
		by.User = u.Username
	}
	if id, err := conn.NC.GetClientID(); err == nil {
		by.ClientID = id
	}
	return by
}
