package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/follow"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newUsageCommand makes stage usage, which adds up the spending of stages. It reads the
// audit alone, so it counts every call, even if its row has no result.
func newUsageCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "usage",
		Short:   "add up calls, tokens and cost, per stage and in total",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
	}
	u := &usageCommand{env: env}
	cmd.Flags().StringSliceVar(&u.chain, "chain", nil, "names of stages whose audit is in the "+
		"same stream, separated by commas; default: STAGE_NAME alone")
	cmd.Flags().StringVar(&u.since, "since", "", "only events stored since a time "+
		"(2006-01-02T15:04:05Z) or that long ago (1h); default: all")
	cmd.Flags().StringSliceVar(&u.by, "by", []string{string(usage.ByStage)}, "what to group by: "+
		"stage, provider, model, day, field.NAME (a member of the rows, such as field.customer); "+
		"empty: the total alone")
	cmd.Flags().StringVarP(&u.output, "output", "o", string(usage.Table), "table, json or csv")
	cmd.Flags().BoolVarP(&u.follow, "follow", "f", false,
		"go on as events are stored, until interrupted")
	cmd.Flags().BoolVar(&u.rollUp, "roll-up", false, "keep the sums of each day in stream USAGE, "+
		"which outlives the audit; later reports have them")
	for _, other := range []string{"by", "since", "output", "follow"} {
		cmd.MarkFlagsMutuallyExclusive("roll-up", other)
	}
	completeList(cmd, "by", usage.Dimensions)
	completeWords(cmd, "output", string(usage.Table), string(usage.JSON), string(usage.CSV))
	u.flags = newStoreFlags(cmd, env)
	u.flags.anyInput = true
	cmd.RunE = u.flags.runOrFollow(&u.follow, u.check, u.print, u.followAll)
	return cmd
}

type usageCommand struct {
	env    *Env
	flags  *storeFlags
	chain  []string
	since  string
	by     []string
	output string
	follow bool
	rollUp bool

	// check reads these from the flags.
	dimensions []usage.Dimension
	format     usage.Format
	o          usage.Options
}

func (u *usageCommand) check(cfg *config.Config) (err error) {
	set := u.flags.cmd.Flags().Changed
	switch {
	case set("chain") && len(u.chain) == 0:
		return errors.New("--chain: it is empty: give names of stages, separated by commas")
	case set("chain") && set(config.FlagName("STAGE_NAME")):
		return fmt.Errorf("--chain and --%s: --chain names all stages; give one of the two",
			config.FlagName("STAGE_NAME"))
	}
	if u.o.Stages, err = stageNames(u.chain, cfg.Name); err != nil {
		return err
	}
	if u.dimensions, err = usage.ParseDimensions(u.by); err != nil {
		return fmt.Errorf("--by %w", err)
	}
	if u.format, err = usage.ParseFormat(u.output); err != nil {
		return fmt.Errorf("-o %w", err)
	}
	u.o.Since, err = sinceTime(u.since, time.Now())
	return err
}

// stageNames reads the value of --chain. Without one it is the name of the configuration.
func stageNames(chain []string, name string) ([]string, error) {
	if len(chain) == 0 {
		return []string{name}, nil
	}
	for i, name := range chain {
		if !config.ValidStageName(name) {
			return nil, fmt.Errorf("--chain %s: %q is no name of a stage: "+
				"give those of STAGE_NAME, separated by commas", strings.Join(chain, ","), name)
		}
		if slices.Contains(chain[:i], name) {
			return nil, fmt.Errorf("--chain %s: %s is in it twice", strings.Join(chain, ","), name)
		}
	}
	return chain, nil
}

// print prints the sums over the stored events. A name without any event is an error: it
// is probably misspelt, and its sums would be 0.
func (u *usageCommand) print(
	ctx context.Context, _ *natsconn.Conn, js jetstream.JetStream, cfg *config.Config,
) error {
	unknown, known, err := usage.Unknown(ctx, js, cfg, u.o.Stages)
	if err == nil && len(unknown) > 0 {
		return config.Invalid(usage.UnknownError(cfg.Audit.Stream, unknown, known))
	}
	if err == nil && u.rollUp {
		return u.keep(ctx, js, cfg)
	}
	r := usage.NewReader(cfg, usage.NewBook(u.dimensions), u.o)
	if err == nil {
		err = r.Read(ctx, js)
	}
	if err != nil {
		return stored.MissingStream(err, cfg.Audit.Stream, "STAGE_AUDIT_STREAM")
	}
	return r.Report().Write(stopping.NewWriter(ctx, u.env.Stdout), u.format)
}

// keep brings the daily sums in stream USAGE up to date, and prints how many days have
// changed.
func (u *usageCommand) keep(ctx context.Context, js jetstream.JetStream, cfg *config.Config) error {
	r := usage.NewReader(cfg, usage.NewBook(usage.Dimensions), u.o)
	days, err := usage.RollUp(ctx, js, r, cfg.Streams.Replicas)
	terminal.PrintLine(u.env.Stdout, "%s stored in stream %s", terminal.Plural(days, "day"),
		usage.RollUpStream)
	return err
}

// followAll prints the sums over the stored events, and again as further events are
// stored.
func (u *usageCommand) followAll(ctx context.Context, cfg *config.Config) error {
	u.o.Recreated = len(cfg.NATS.URL) == 0
	r := usage.NewReader(cfg, usage.NewBook(u.dimensions), u.o)
	live := usage.NewLive(stopping.NewWriter(ctx, u.env.Stdout), u.format,
		terminal.Is(u.env.Stdout))
	show := func() error { return live.Show(r.Report()) }
	note := func(format string, name string) func() {
		return func() { terminal.PrintLine(u.env.Stderr, format, name) }
	}
	noted := false
	read := func(ctx context.Context, js jetstream.JetStream, more bool) error {
		// A stage without an event may have none yet: with --follow its name is no error.
		unknown, known, err := usage.Unknown(ctx, js, cfg, u.o.Stages)
		if err == nil && len(unknown) > 0 && !noted {
			noted = true
			terminal.PrintLine(u.env.Stderr, "waiting: %v",
				usage.UnknownError(cfg.Audit.Stream, unknown, known))
		}
		if more {
			return r.Follow(ctx, js,
				note("waiting for stream %s, which does not exist yet", cfg.Audit.Stream), show)
		}
		return errors.Join(r.Read(ctx, js), r.Show(show))
	}
	return follow.Run(ctx, cfg, logging.NewConfigured(cfg, u.env.Stderr),
		note("waiting for a process that serves %s", cfg.Data.Dir), read)
}
