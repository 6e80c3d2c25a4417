package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/job"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/erase"
	"github.com/llm-stage/stage/internal/ops/verify/chain"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// eraseCommand is stage erase, which removes the bodies of rows from all streams, and
// from the batches that a provider keeps. It works beside a running stage or without one.
// It prints a plan and asks before it removes anything; --dry-run only prints the plan.
type eraseCommand struct {
	env    *Env
	flags  *storeFlags
	rows   []string
	field  string
	key    string
	chain  []string
	dryRun bool
	yes    bool
	output *string
	o      erase.Options
}

// newEraseCommand makes stage erase. It allows the flags of the provider, since the
// provider keeps the requests and replies of batches, too.
func newEraseCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "erase",
		Short: "remove all that is stored of rows, such as those of a customer, " +
			"and leave tombstones",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	c := &eraseCommand{env: env}
	cmd.Flags().StringSliceVar(&c.rows, "row", nil,
		"`sequences` of rows in the input stream, such as 7 or 7,12-15")
	cmd.Flags().StringVar(&c.field, "field", "",
		"rows whose top-level member has this value, as `NAME=VALUE`")
	cmd.Flags().StringVar(&c.key, "key", "",
		"rows of this `key`, where results are in order by key (STAGE_ORDER=key)")
	cmd.Flags().IntVar(&c.o.Partition, "partition", -1,
		"only rows of this partition, counted from 0; -1: all")
	cmd.Flags().BoolVar(&c.o.Resume, "resume", false,
		"only finish what an interrupted erasure has begun")
	cmd.Flags().StringSliceVar(&c.chain, "chain", nil, "`names` of stages in the order in which "+
		"rows flow, with commas in between: erase in the later ones what was made from these "+
		"rows, too")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false,
		"only print what would be removed, and where it is")
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask")

	c.output = addOutputFlag(cmd, "table, or json")
	c.flags = newStoreFlags(cmd, env)
	c.flags.allow("STAGE_CONTROL", "STAGE_RESPONSE_FIELD", "STAGE_DEDUPE_TTL", "STAGE_LANE_STREAM")
	c.flags.allow(providerSettings...)
	cmd.RunE = c.flags.runOnStore(c.check, c.run)
	return cmd
}

// check reads the flags. Exactly one way to select the rows must be given, and
// STAGE_CONTROL must be true, except with --dry-run.
func (c *eraseCommand) check(cfg *config.Config) error {
	changed := c.flags.cmd.Flags().Changed
	selected := 0
	for _, flag := range []string{"row", "field", "key", "resume"} {
		if changed(flag) {
			selected++
		}
	}
	switch {
	case selected != 1:
		return errors.New("select the rows with one of --row, --field and --key, or give --resume")
	case changed("key"):
		c.o.Key = &c.key
	case changed("field"):
		name, value, ok := strings.Cut(c.field, "=")
		if !ok || name == "" {
			return fmt.Errorf("--field %q: give the name of a member of the rows and its value, "+
				"such as customer=c17", c.field)
		}
		c.o.Field, c.o.Value = name, value
	}

	for _, text := range c.rows {
		r, err := parseRange(text)
		if err != nil {
			return err
		}
		c.o.Rows = append(c.o.Rows, r)
	}
	// --row "$ROWS" with an unset variable must not pass for a selection of nothing.
	if changed("row") && len(c.o.Rows) == 0 {
		return errors.New("--row is empty: give sequences of rows, such as 7 or 7,12-15")
	}

	if changed("chain") {
		for _, flag := range []string{"job", config.FlagName("STAGE_NAME"), "partition"} {
			if changed(flag) {
				return fmt.Errorf("--chain and --%s: --chain names all stages, "+
					"and the rows of the first are selected; give one of the two", flag)
			}
		}
		if err := chain.CheckNames(c.chain); err != nil {
			return err
		}
	}

	if !c.dryRun && !cfg.Control.Obey {
		return errors.New("STAGE_CONTROL: nothing is erased unless it is true: " +
			"set it, or see what there is with --dry-run")
	}
	return checkOutput(*c.output)
}

// parseRange reads 7 or 12-15. Sequences begin with 1.
func parseRange(text string) (r erase.Range, err error) {
	first, last, several := strings.Cut(strings.TrimSpace(text), "-")
	if !several {
		last = first
	}
	var errLast error
	r.First, err = strconv.ParseUint(first, 10, 64)
	r.Last, errLast = strconv.ParseUint(last, 10, 64)
	if err != nil || errLast != nil || r.First == 0 || r.Last < r.First {
		return r, fmt.Errorf("--row %q: give the sequence of a row in the input stream, from 1, "+
			"or a range such as 12-15", text)
	}
	return r, nil
}

// run plans the erasure, asks, and executes it. With --chain, the plan also covers the
// rows that later stages of the chain have made from the selected ones.
func (c *eraseCommand) run(
	ctx context.Context, conn *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
) error {
	by := asker(conn, cfg, control.Verb("erase"))
	c.o.By, c.o.Asked = by.String(), by.Detail()
	c.o.DeleteBatch = func(ctx context.Context, b erase.Batch) error {
		return call.DeleteBatch(ctx, cfg, b.Provider, b.Model, b.ID)
	}
	if c.flags.job != "" {
		c.o.Results = job.Eraser(js, cfg,
			func(text string) { terminal.PrintLine(c.env.Stderr, "%s", text) })
	}

	stages := []*config.Config{cfg}
	if len(c.chain) > 0 {
		found, notes, err := chain.Stages(ctx, js, cfg, c.chain)
		if err != nil {
			return err
		}
		for _, note := range notes {
			terminal.PrintLine(c.env.Stderr, "note: %s", note)
		}
		stages = found
	}

	plan, err := erase.NewChain(ctx, js, stages, c.o)
	if err != nil {
		return err
	}
	if c.dryRun || plan.Empty() {
		return errors.Join(c.print(plan), plan.Err())
	}
	if !c.yes {
		if err := c.confirm(plan); err != nil {
			return err
		}
	}
	err = plan.Execute(ctx)
	return errors.Join(err, c.print(plan), plan.Err())
}

// print prints the plan, which after its execution also says what was done.
func (c *eraseCommand) print(plan *erase.Chain) error {
	if *c.output == formatJSON {
		return terminal.WriteJSON(c.env.Stdout, plan.Reports())
	}
	plan.Write(c.env.Stdout)
	return nil
}

// confirm shows the plan on the terminal and asks.
func (c *eraseCommand) confirm(plan *erase.Chain) error {
	if err := c.env.canAsk("give --yes to erase without a question, " +
		"or --dry-run to see what there is"); err != nil {
		return err
	}
	plan.Write(c.env.Stderr)
	return c.env.ask("Erase it? Nothing brings it back.", errors.New("nothing was erased"))
}
