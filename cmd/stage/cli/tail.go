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
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/tail"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

func newTailCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tail",
		Short:   "follow the audit: one line for each call, row and turn of the run",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
		Long: "tail prints audit events as they are stored, until interrupted (of a store that no process serves: all there are): time, row, which call of the row, provider and model,\n" +
			"outcome, latency, tokens (in+out), the throttle's delay. With --row it tells the whole story of one row and ends:\n" +
			"queued, each call, which row it waited for, emitted. On a terminal retries are yellow and errors red, unless NO_COLOR is set.",
		Example: "  stage tail --nats-url nats://localhost:4222\n" +
			"  stage tail --kind call --failed --since 1h\n" +
			"  stage tail --row 4711 --data-dir stage-data/reviews.jsonl-1a2b3c4d",
	}
	kinds := cmd.Flags().StringSlice("kind", nil, "events of these kinds: call, row, run; default: all")
	row := cmd.Flags().Uint64("row", 0, "the story of the row with this sequence in the input stream")
	failed := cmd.Flags().Bool("failed", false, "only what did not succeed")
	since := cmd.Flags().String("since", "", "begin at a time (2006-01-02T15:04:05Z) or so long ago (1h); default: now")
	asJSON := cmd.Flags().Bool("json", false, "print the events as they are stored, one a line")
	flags := newConfigFlags(cmd, env, configFlagsOptions{Groups: []string{"Stage", "NATS", "Embedded server", "Streams and subjects"}})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.Load(cmd.Context(), config.NeedNothing)
		if err != nil {
			return err
		}
		o := tail.Options{Row: *row, Failed: *failed, JSON: *asJSON}
		if o.Kinds, err = auditKinds(*kinds); err != nil {
			return config.Invalid(err)
		}
		if o.Since, err = sinceTime(*since, time.Now()); err != nil {
			return config.Invalid(err)
		}
		soft, _, stop := env.Contexts(cmd.Context())
		defer stop()
		return tailStreams(soft, env, cfg, o)
	}
	return cmd
}

func auditKinds(names []string) (kinds []auditlog.Kind, err error) {
	for _, name := range names {
		kind := auditlog.Kind(name)
		if !slices.Contains([]auditlog.Kind{auditlog.KindCall, auditlog.KindRow, auditlog.KindRun}, kind) {
			return nil, fmt.Errorf("--kind %q: it is call, row or run", name)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// sinceTime reads a time or how long ago; zero for "".
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("--since %q: give a time such as 2006-01-02T15:04:05Z, or how long ago, such as 1h", text)
	}
	return t, nil
}

// tailStreams prints events until ctx ends, which is how it is meant to end, or the story of a row is told.
func tailStreams(ctx context.Context, env *Env, cfg *config.Config, o tail.Options) error {
	conn, err := natsconn.ConnectReader(ctx, cfg, cfg.Data.Dir, false, logging.NewConfigured(cfg, env.Stderr))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn.NC)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(stopping.NewWriter(ctx, env.Stdout))
	o.Follow, o.Colour = conn.Server == nil, colourOf(env)
	if o.Row != 0 {
		err = tail.Story(ctx, js, cfg, out, o)
	} else {
		err = tail.Print(ctx, js, cfg, out, o)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(conn.Explain(err), out.Flush())
}

// colourOf says whether to colour what goes to standard output.
func colourOf(env *Env) bool { return terminal.Is(env.Stdout) && env.Environ["NO_COLOR"] == "" }
