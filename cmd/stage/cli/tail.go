package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/follow"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newTailCommand makes stage tail, which prints the stored audit events, with --follow also
// those that come, or with --row the history of one row. With --row it also asks the
// running replicas what the row waits for, since the audit has only what has ended.
func newTailCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tail",
		Short:   "print the audit, or follow it: one line for each event",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	var o tail.Options
	kinds := cmd.Flags().StringSlice("kind", nil,
		"kinds of events: call, row, run, batch; default, or empty: all")
	completeList(cmd, "kind", kindsKnown)
	row := cmd.Flags().String("row", "", "history of the row with this sequence in the input "+
		"stream, or of one of its elements (SEQUENCE#ELEMENT); exit code 1 if it has none")
	cmd.Flags().BoolVar(&o.Failed, "failed", false, "only failures and retries")
	cmd.Flags().StringSliceVar(&o.Reason, "reason", nil,
		"only rows that failed for these reasons, separated by commas; default: all events")
	since := cmd.Flags().String("since", "", "start at a time (2006-01-02T15:04:05Z) or that long "+
		"ago (1h); default: with the first stored event, with --follow with the next new one")
	follows := cmd.Flags().BoolP("follow", "f", false,
		"go on with new events as they are stored, until interrupted")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the events as they are stored, one per line")

	flags := newStoreFlags(cmd, env)
	flags.anyInput = true

	check := func(*config.Config) (err error) {
		if cmd.Flags().Changed("row") {
			if o.Row, o.Item, err = tail.ParseRow(*row); err != nil {
				err = fmt.Errorf("--row %w", err)
			}
		}
		if err == nil {
			o.Kinds, err = auditKinds(*kinds)
		}
		if err == nil {
			err = checkFilters(&o, *follows)
		}
		if err == nil {
			o.Since, err = sinceTime(*since, time.Now())
		}
		return err
	}

	run := func(
		ctx context.Context, conn *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
	) (err error) {
		to := env.Stdout
		if o.JSON {
			to = terminal.JSON(to)
		}
		out := bufio.NewWriter(stopping.NewWriter(ctx, to))
		// To a store that this command serves itself, no event is added.
		o.Follow, o.Colour = *follows && conn.Server == nil, colourOf(env)
		if o.Follow && len(cfg.NATS.URL) == 0 {
			served, stop := follow.WhileServed(ctx, cfg.Data.Dir)
			defer stop()
			ctx = served
		}

		if o.Row != 0 {
			if conn.Server == nil { // this process serves no store, so a stage may run on it
				o.Now = func(ctx context.Context) ([]tail.InFlight, string) {
					return rowNow(ctx, conn, cfg, o.Row)
				}
			}
			err = tail.History(ctx, js, cfg, out, o)
		} else {
			err = tail.Print(ctx, js, cfg, out, o)
		}

		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return stored.MissingStream(err, cfg.Audit.Stream, "STAGE_AUDIT_STREAM")
		}
		if err != nil && o.Follow && !tail.IsNoEvent(err) && len(cfg.NATS.URL) == 0 &&
			follow.Ended(ctx) {
			terminal.PrintLine(env.Stderr, "%v", follow.ErrServerEnded)
		}
		if ctx.Err() != nil { // ended by an interrupt, or with the server, as is usual
			err = nil
		}
		return errors.Join(err, out.Flush())
	}
	cmd.RunE = flags.runOnStore(check, run)
	return cmd
}

// rowNow asks the running replicas about a row. They know its calls in flight, which are
// not in the audit before they end, and why the row waits. If it waits for a call that is
// listed, waits is empty.
func rowNow(ctx context.Context, conn *natsconn.Conn, cfg *config.Config, row uint64) (
	calls []tail.InFlight, waits string,
) {
	inFlight, wait := replicas.AskRow(ctx, conn.NC(), cfg.Name, row)
	for _, c := range inFlight {
		calls = append(calls,
			tail.InFlight{
				Item: c.Item, Attempt: c.Attempt, Provider: c.Provider, Model: c.Model,
				Since: c.Since, Host: c.Host,
			})
	}
	if wait != nil && (wait.Kind != hold.Call || len(calls) == 0) {
		waits = wait.RowText(time.Now())
	}
	return calls, waits
}

// kindsKnown are the values of --kind.
var kindsKnown = []auditlog.Kind{
	auditlog.KindCall, auditlog.KindRow, auditlog.KindRun,
	auditlog.KindBatch,
}

// auditKinds reads the values of --kind.
func auditKinds(names []string) (kinds []auditlog.Kind, err error) {
	for _, name := range names {
		kind := auditlog.Kind(name)
		if !slices.Contains(kindsKnown, kind) {
			return nil, fmt.Errorf("--kind %q: it is call, row, run or batch", name)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// checkFilters reports filters that contradict each other. With --reason it selects row
// events alone, since no others have a reason.
func checkFilters(o *tail.Options, follows bool) error {
	switch {
	case follows && o.Row != 0:
		return errors.New("--follow and --row: --row prints the history of one row and ends; " +
			"give one of the two")
	case o.Failed && o.Row != 0:
		return errors.New("--failed and --row: --row prints the whole history of one row; " +
			"give one of the two")
	case len(o.Reason) == 0:
		return nil
	case o.Row != 0:
		return errors.New("--reason and --row: --row prints the history of one row, " +
			"whatever it failed for; give one of the two")
	case len(o.Kinds) > 0 && !slices.Contains(o.Kinds, auditlog.KindRow):
		return errors.New("--reason and --kind: only row events have a reason; leave --kind out")
	}
	o.Kinds = []auditlog.Kind{auditlog.KindRow}
	return nil
}
