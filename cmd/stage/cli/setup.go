package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

func newSetupCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "setup",
		Short:   "create missing streams and durable consumers and check existing ones",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
		Long: "setup does what run does before its first row: it creates missing streams and the missing durable consumers of partitions,\n" +
			"and checks those that exist. Run it as a user who may create streams, so that run needs no such permission, or ahead of\n" +
			"an autoscaler that watches the durable. With STAGE_CREATE_STREAMS=false it only checks.",
		Example: "  stage setup --nats-url nats://localhost:4222\n" +
			"  stage setup --nats-url nats://localhost:4222 --create-streams=false",
	}
	flags := newConfigFlags(cmd, env, groupsOfStreams, nil)
	flags.allow("STAGE_WINDOW", "STAGE_ORDER", "STAGE_ORDER_KEY", "STAGE_ORDER_SPAN",
		"STAGE_LANE", "STAGE_LANE_ROWS", "STAGE_LANE_OPEN", "STAGE_LANE_STREAM")
	cmd.RunE = flags.runOnStreams(nil, func(ctx context.Context, conn *natsconn.Conn, _ jetstream.JetStream, cfg *config.Config) error {
		if err := setUpStreams(ctx, conn.NC, cfg); err != nil {
			return err
		}
		_, err := fmt.Fprintln(env.Stdout, "streams and durable consumers are ready")
		return err
	})
	return cmd
}

// setUpStreams creates and checks all streams and the durable consumer of each partition. The error lists every
// problem.
func setUpStreams(ctx context.Context, nc *nats.Conn, cfg *config.Config) error {
	if err := streams.Ensure(ctx, nc, stored.Streams(cfg)); err != nil {
		return err
	}
	var errs []error
	for p := range cfg.Streams.Partitions {
		_, err := streams.OpenDurable(ctx, nc, stored.Durable(cfg, p))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
