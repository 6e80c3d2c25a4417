package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/erase"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/permissions"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newSetupCommand makes stage setup. A user who may create streams runs it to create and
// check everything that run needs, or to print which permissions run's own user needs. Its
// help lists the flags for size, age, storage and replicas of new streams. Nothing changes
// a stream that exists.
func newSetupCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "setup",
		Short: "create missing streams and durable consumers and check existing ones, " +
			"or print them, or what the NATS user must be allowed",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
	}
	permit := cmd.Flags().Bool("print-permissions", false, "print the least permissions of run's "+
		"NATS user with these settings, and connect to no server")
	who := cmd.Flags().String("for", forRun,
		"whose permissions: run, or erase, which should have a user of its own")
	completeWords(cmd, "for", forRun, forErase)
	list := cmd.Flags().Bool("print-streams", false, "print the configurations of the streams "+
		"that setup creates with these settings, as JSON, and connect to no server")
	output := cmd.Flags().StringP("output", "o", formatConf,
		"how to print the permissions: conf (of nats-server) or json")
	completeWords(cmd, "output", formatConf, formatJSON)

	// The durables depend on the window and the order, and the streams on the batch lane
	// and on batched requests. So setup needs these settings, although it processes no row.
	flags := newConfigFlags(cmd, env, groupsOfStreams, nil)
	flags.allow("STAGE_WINDOW", "STAGE_ORDER", "STAGE_ORDER_KEY", "STAGE_ORDER_SPAN",
		"STAGE_LANE", "STAGE_LANE_ROWS", "STAGE_LANE_OPEN", "STAGE_LANE_STREAM",
		"STAGE_BATCH", "STAGE_BATCH_STREAM")
	flags.allow(settingsOfPermissions...)
	flags.own("STAGE_STREAM_REPLICAS", "STAGE_STREAM_STORAGE", "STAGE_RESULT_MAX_BYTES",
		"STAGE_AUDIT_MAX_BYTES",
		"STAGE_AUDIT_MAX_AGE", "STAGE_JOURNAL_MAX_BYTES")

	stages := flags.addStages()

	// After a problem of one stage, setup goes on with the next, and lists all problems.
	run := func(soft, _ context.Context, cfgs []*config.Config, _ []string) error {
		do := func(
			ctx context.Context, conn *natsconn.Conn, js jetstream.JetStream, _ *config.Config,
		) error {
			var errs []error
			for _, cfg := range cfgs {
				err := setUpStreams(ctx, env, conn.NC(), cfg)
				if err != nil && *stages != "" {
					err = fmt.Errorf("stage %s: %w", cfg.Name, err)
				}
				errs = append(errs, err)
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			if err := noteDenied(ctx, env, js, cfgs); err != nil {
				return err
			}
			_, err := fmt.Fprintln(env.Stdout, "streams and durable consumers are ready")
			return err
		}
		return withStreams(soft, env, cfgs[0], do)
	}
	setUp := flags.runStages(stages, config.NeedNothing, run)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *output != formatConf && *output != formatJSON:
			return config.Invalid(fmt.Errorf("--output %q: it is %s or %s", *output, formatConf,
				formatJSON))
		case *who != forRun && *who != forErase:
			return config.Invalid(fmt.Errorf("--for %q: it is %s or %s", *who, forRun, forErase))
		case cmd.Flags().Changed("for") && !*permit:
			return config.Invalid(errors.New("--for: it is about --print-permissions: " +
				"give that too, or remove it"))
		case *list && *permit:
			return config.Invalid(errors.New("--print-streams: it prints alone: " +
				"remove it, or --print-permissions"))
		case *list:
			return printStreams(cmd.Context(), env, flags, *stages)
		case *permit:
			return printPermissions(cmd.Context(), env, flags, *stages, *output, *who)
		case cmd.Flags().Changed("output"):
			return config.Invalid(errors.New("--output: it is about --print-permissions: " +
				"give that too, or remove it"))
		}

		for _, variable := range settingsOfPermissions {
			flags.refuse("setup uses it only with --print-permissions: add that, or remove it",
				config.FlagName(variable))
		}
		if create := "STAGE_CREATE_STREAMS"; !cmd.Flags().Changed(config.FlagName(create)) {
			flags.values[create] = "true" // run's user may not create streams, setup's may
		}
		return setUp(cmd, args)
	}
	return cmd
}

// The values of --for.
const (
	forRun   = "run"
	forErase = "erase"
)

// formatConf is the value of --output for the configuration of nats-server.
const formatConf = "conf"

// settingsOfPermissions are variables that setup uses only to print permissions.
var settingsOfPermissions = []string{
	"STAGE_BUDGET", "STAGE_CONTROL", "STAGE_DEDUPE",
	"STAGE_MAX_COST_USD", "STAGE_PRICES_FILE",
}

// printPermissions prints the permissions that the NATS user of run, or of erase, needs
// with the present settings. It connects to no server.
func printPermissions(
	ctx context.Context, env *Env, flags *configFlags, stages, output, who string,
) error {
	flags.offline = true
	cfgs, err := flags.LoadStages(ctx, stages, config.NeedNothing)
	if err != nil {
		return err
	}
	needed := permissions.Of(cfgs...)
	if who == forErase {
		needed = permissions.OfErase(cfgs...)
	}
	if output == formatJSON {
		return needed.WriteJSON(env.Stdout)
	}
	return needed.WriteConf(env.Stdout)
}

// printStreams prints the streams of all stages, in the form of JetStream's API and the
// nats CLI. A stream that several stages use is printed once. It connects to no server.
func printStreams(ctx context.Context, env *Env, flags *configFlags, stages string) error {
	flags.offline = true
	cfgs, err := flags.LoadStages(ctx, stages, config.NeedNothing)
	if err != nil {
		return err
	}
	var all []jetstream.StreamConfig
	for _, cfg := range cfgs {
		for _, want := range stored.Streams(cfg).Wanted() {
			if !slices.ContainsFunc(all,
				func(other jetstream.StreamConfig) bool { return other.Name == want.Name }) {
				all = append(all, want) // the first stage creates it, and later ones only check it
			}
		}
	}
	encoder := json.NewEncoder(env.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(all)
}

// noteDenied prints the streams that deny deletes, from which stage erase can remove
// nothing.
func noteDenied(
	ctx context.Context, env *Env, js jetstream.JetStream, cfgs []*config.Config,
) error {
	noted := make(map[string]bool)
	for _, cfg := range cfgs {
		names, err := erase.Denied(ctx, js, cfg)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !noted[name] {
				noted[name] = true
				terminal.PrintLine(env.Stderr, "note: stream %s: %s", name, erase.WhyDenied)
			}
		}
	}
	return nil
}

// setUpStreams creates and checks all streams and the durable consumer of each partition.
// The error lists every problem.
func setUpStreams(ctx context.Context, env *Env, nc *nats.Conn, cfg *config.Config) error {
	if err := streams.Ensure(ctx, nc, stored.Streams(cfg)); err != nil {
		return err
	}
	var errs []error
	if cfg.Serve.Batches {
		err := streams.EnsureBatches(ctx, nc, stored.Streams(cfg))
		// A user of an earlier version has no permission for the stream of deferred
		// batches.
		if errors.Is(err, nats.ErrPermissionViolation) {
			terminal.PrintLine(env.Stderr, "note: %v; until then deferred batches are refused, "+
				"and no row depends on it (STAGE_BATCH=false needs no stream)",
				config.Explained(err))
			err = nil
		}
		errs = append(errs, err)
	}
	for p := range cfg.Streams.Partitions {
		_, err := streams.OpenDurable(ctx, nc, stored.Durable(cfg, p))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
