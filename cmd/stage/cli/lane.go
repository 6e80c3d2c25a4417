package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newLaneCommand makes stage lane with its commands ls, show and cancel. They read the
// records of batches from the stream of the lane, so they work while no stage runs. Only
// cancel makes calls to the provider.
func newLaneCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "lane",
		Short:   "list, show and cancel the batches of the batch lane (STAGE_LANE)",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(env.Stderr)
			return errors.Join(config.Invalid(errors.New("name a command: ls, show or cancel")),
				cmd.Help())
		},
	}
	cmd.AddCommand(newLaneListCommand(env), newLaneShowCommand(env), newLaneCancelCommand(env))
	return cmd
}

// laneFlags are the flags of a command on batches.
type laneFlags struct {
	*storeFlags

	output *string
}

// newLaneFlags adds the flags of a command on batches. STAGE_LANE_STREAM is deprecated, but
// a stage may still set it, and then these commands must read that stream.
func newLaneFlags(cmd *cobra.Command, env *Env) *laneFlags {
	f := &laneFlags{output: addOutputFlag(cmd, "table, or json")}
	f.storeFlags = newStoreFlags(cmd, env)
	f.allow("STAGE_LANE_STREAM")
	return f
}

// run returns a RunE that calls do with the records of all batches, open or not.
func (f *laneFlags) run(
	do func(ctx context.Context, cfg *config.Config, all []lane.Batch, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		check := func(*config.Config) error { return checkOutput(*f.output) }
		read := func(
			ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
		) error {
			all, err := lane.Batches(ctx, js, cfg.Lane.Stream, cfg.Name, cfg.Streams.Partitions,
				time.Now())
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				return config.Invalid(fmt.Errorf("stream %s does not exist: "+
					"no stage with a batch lane has run here", cfg.Lane.Stream))
			}
			if err != nil {
				return err
			}
			return do(ctx, cfg, all, args)
		}
		return f.runOnStore(check, read)(cmd, nil)
	}
}

// newLaneListCommand makes stage lane ls. Without --all it lists the batches that may
// still be answered.
func newLaneListCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the open batches, the oldest first",
		Args:    cobra.NoArgs,
	}
	every := cmd.Flags().BoolP("all", "a", false, "also batches that are done or abandoned")
	flags := newLaneFlags(cmd, env)
	run := func(_ context.Context, _ *config.Config, all []lane.Batch, _ []string) error {
		list := []lane.Batch{} // [] for none
		for i := range all {
			if *every || all[i].Open() {
				list = append(list, all[i])
			}
		}
		switch {
		case *flags.output == formatJSON:
			return terminal.WriteJSON(env.Stdout, list)
		case len(list) == 0:
			terminal.PrintLine(env.Stderr, "no open batches")
			return nil
		}
		return writeBatches(env.Stdout, list)
	}
	cmd.RunE = flags.run(run)
	return cmd
}

// writeBatches prints a table of batches, a line each, with the columns in its first
// line. A name from a record may hold control characters, so each cell is escaped.
func writeBatches(w io.Writer, list []lane.Batch) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BATCH\tPARTITION\tSTATE\tROWS\tSIZE\tAGE\tPROVIDER\tID") //nolint:errcheck // Flush reports it
	for i := range list {
		b := &list[i]
		cells := []string{
			b.Token, fmt.Sprint(b.Partition), string(b.State), fmt.Sprint(b.Rows),
			terminal.Bytes(b.Bytes), ageOf(b),
			b.Provider + "/" + b.Model, terminal.OrDash(b.BatchID),
		}
		for k := range cells {
			cells[k] = terminal.OneLine(cells[k])
		}
		fmt.Fprintln(table, strings.Join(cells, "\t")) //nolint:errcheck // as above
	}
	return table.Flush()
}

func ageOf(b *lane.Batch) string {
	return (time.Duration(b.AgeS) * time.Second).String()
}

// newLaneShowCommand makes stage lane show, which prints the record of one batch, or the
// sequences of its rows.
func newLaneShowCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show BATCH",
		Short: "show what is recorded of a batch",
		Args:  required(noBatch, cobra.ExactArgs(1)),
	}
	rows := cmd.Flags().Bool("rows", false,
		"print only the sequences of its rows in the input stream, one a line")
	flags := newLaneFlags(cmd, env)
	run := func(_ context.Context, _ *config.Config, all []lane.Batch, args []string) error {
		b, err := findBatch(all, args[0])
		switch {
		case err != nil:
			return err
		case *rows:
			return writeSequences(env.Stdout, b.Seqs)
		case *flags.output == formatJSON:
			return terminal.WriteJSON(env.Stdout, b)
		}
		return writeBatch(env.Stdout, b)
	}
	cmd.RunE = flags.run(run)
	return cmd
}

// noBatch is the error where the name of a batch is missing.
const noBatch = "name a batch: stage lane ls lists them"

// findBatch is [lane.FindBatch], with a remedy in its error.
func findBatch(all []lane.Batch, name string) (*lane.Batch, error) {
	b, err := lane.FindBatch(all, name)
	if err != nil {
		return nil, config.Invalid(fmt.Errorf("%w; stage lane ls --all lists them", err))
	}
	return b, nil
}

func writeBatch(w io.Writer, b *lane.Batch) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		fmt.Fprintf(table, "%s\t%s\n", name, terminal.OneLine(value)) //nolint:errcheck // Flush reports it
	}
	line("batch", b.Token)
	line("provider's id", terminal.OrDash(b.BatchID))
	line("state", string(b.State))
	line("provider", b.Provider)
	line("model", terminal.OrDash(b.Model))
	line("partition", fmt.Sprint(b.Partition))
	line("rows", fmt.Sprintf("%d, from %d to %d", b.Rows, b.FirstRow, b.LastRow))
	line("size", terminal.Bytes(b.Bytes))

	if b.Tokens > 0 {
		line("estimated tokens", fmt.Sprint(b.Tokens))
	}
	if b.CostUSD > 0 {
		line("estimated cost", fmt.Sprintf("%.4f USD", b.CostUSD))
	}

	line("recorded", b.Since.Local().Format(time.DateTime)+", "+ageOf(b)+" ago")
	if !b.Submitted.IsZero() {
		line("submitted", b.Submitted.Local().Format(time.DateTime))
	}
	switch {
	case b.Tentative:
		line("adopted",
			"yes, tentatively: the ids of its results will tell whether it is this batch")
	case b.Adopted:
		line("adopted", "yes: it was found at the provider after a crash")
	}
	if b.Reason != "" {
		line("abandoned", b.Reason)
	}
	if b.Uncertain {
		line("uncertain", "it may exist at the provider all the same, and be billed")
	}
	line("owner", terminal.OrDash(b.Owner))
	line("account", terminal.OrDash(b.Account))
	return table.Flush()
}

func writeSequences(w io.Writer, seqs []uint64) error {
	var text []byte
	for _, seq := range seqs {
		text = fmt.Appendln(text, seq)
	}
	_, err := w.Write(text)
	return err
}

// newLaneCancelCommand makes stage lane cancel. It asks the provider alone: the owner of
// the partition sees at its next look that the provider has ended the batch. It writes no
// record. The owner appends each of its records on condition that the last one is its own,
// so after a record from here the server would refuse the owner's next one, and end its
// term.
func newLaneCancelCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel BATCH...",
		Short: "cancel batches at the provider",
		Args:  required(noBatch, cobra.ArbitraryArgs),
	}
	flags := newLaneFlags(cmd, env)
	flags.allow(providerSettings...)
	run := func(ctx context.Context, cfg *config.Config, all []lane.Batch, args []string) error {
		var batches []*lane.Batch
		for _, name := range args { // all are found before the first is cancelled
			b, err := findBatch(all, name)
			if err != nil {
				return err
			}
			if b.State != lane.StateRunning {
				return config.Invalid(fmt.Errorf("batch %s can't be cancelled: "+
					"it is %s, not running at the provider", b.Token, b.State))
			}
			batches = append(batches, b)
		}

		var errs []error
		for _, b := range batches {
			if err := call.CancelBatch(ctx, cfg, b.Provider, b.Model, b.BatchID); err != nil {
				errs = append(errs, fmt.Errorf("batch %s: %w", b.Token, err))
				continue
			}
			terminal.PrintLine(env.Stdout, "%s: %s was asked to cancel %s", b.Token, b.Provider,
				b.BatchID)
		}
		return errors.Join(errs...)
	}
	cmd.RunE = flags.run(run)
	return cmd
}
