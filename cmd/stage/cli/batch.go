package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"
)

// newBatchCommand makes stage batch, the client of batched requests. It needs a running
// stage, which the settings name by its server and its name. The exit code is 0 if at
// least one prompt was answered, 1 if none was, 2 for an invalid request, and 3 where the
// account, the key or the address must be fixed first. With --detach it waits for no
// answer, and the commands get, cancel and ls continue from the id that it prints.
func newBatchCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "batch [FILE]",
		Short: "send one batched request to a running stage and print the reply, " +
			"or leave it there (--detach)",
		GroupID: groupWork,
		Args:    cobra.MaximumNArgs(1),
	}
	detach := cmd.Flags().Bool("detach", false, "leave the batch with the stage, "+
		"print its id and do not wait: stage batch get fetches the answers")
	keep := cmd.Flags().Duration("keep", 0,
		"with --detach, how long the answers are kept after the end (default 24h)")
	timeout := cmd.Flags().Duration("timeout", 10*time.Minute,
		"how long to wait for the reply; 0: no limit")
	flags := newConfigFlags(cmd, env, []string{"Stage", "NATS", "Embedded server"}, nil)
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		switch {
		case *timeout < 0:
			return config.Invalid(errors.New("--timeout: must not be negative"))
		case *detach:
			return submitBatch(soft, env, cfg, argumentOr(args, "-"), *keep, *timeout)
		case *keep != 0:
			return config.Invalid(errors.New("--keep: it is about --detach: " +
				"give that too, or remove it"))
		}
		return sendBatch(soft, env, cfg, argumentOr(args, "-"), *timeout)
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	cmd.AddCommand(newBatchGetCommand(env), newBatchCancelCommand(env), newBatchListCommand(env))
	return cmd
}

// sendBatch sends the request of a file and prints the reply. The request is checked
// first, as the stage would check it. So a mistake is reported without a server, and the
// error names the file.
func sendBatch(
	ctx context.Context, env *Env, cfg *config.Config, file string, timeout time.Duration,
) error {
	request, err := readBatchFile(ctx, env, file, func(text []byte) error {
		_, err := batch.ReadRequest(text)
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return config.Invalid(err)
	}

	conn, err := connectRunning(ctx, cfg, logging.NewConfigured(cfg, env.Stderr))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own
	if limit := int(conn.NC().MaxPayload()) - batch.Headroom; len(request) > limit {
		return config.Invalid(fmt.Errorf("the request takes %d bytes, the server's messages at "+
			"most %d: send several batches", len(request), limit))
	}

	subject := config.BatchSubject(cfg.Name)
	reply, err := batch.Request(ctx, conn.NC(), subject, request, timeout)
	if err != nil {
		return batchNotAnswered(ctx, conn.NC(), cfg, subject, timeout, err)
	}
	if len(reply.Data) > 0 {
		if _, err := fmt.Fprintf(terminal.JSON(env.Stdout), "%s\n", reply.Data); err != nil {
			return err
		}
	}
	return batchVerdict(cfg, reply)
}

// readBatchFile reads the request of a file and checks it.
func readBatchFile(
	ctx context.Context, env *Env, name string, check func([]byte) error,
) ([]byte, error) {
	text, err := env.readInput(ctx, name)
	if err == nil {
		err = check(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rowfile.InputName(name), err)
	}
	return text, nil
}

// connectRunning connects to the server of the configuration or, without one, to the
// embedded server of a running stage. Unlike commands on streams it never opens a store
// itself, since no stage would answer there.
func connectRunning(
	ctx context.Context, cfg *config.Config, log *slog.Logger,
) (*natsconn.Conn, error) {
	if len(cfg.NATS.URL) == 0 {
		_, running, err := natsd.Discover(cfg.Data.Dir)
		if err != nil {
			return nil, err
		}
		if !running {
			return nil, fmt.Errorf("no stage runs with an embedded server on %s: "+
				"start one with stage run, name its store with --data-dir, "+
				"or a server with --nats-url", cfg.Data.Dir)
		}
	}
	return natsconn.ConnectReader(ctx, cfg, cfg.Data.Dir, false, log)
}

// batchNotAnswered explains why there is no reply. If nobody takes the request, it asks
// whether the stage runs at all: a stage may run with STAGE_BATCH=false, or without the
// permission to subscribe, and that needs another remedy than a stage that is down.
func batchNotAnswered(
	ctx context.Context, nc *nats.Conn, cfg *config.Config, subject string, timeout time.Duration,
	err error,
) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		if running := replicas.Merge(replicas.Ask(ctx, nc, cfg.Name, nil), replicas.NewMemory(),
			time.Now()); len(running.Replicas) > 0 {
			return fmt.Errorf("stage %s runs, but takes no batched requests: "+
				"start it with STAGE_BATCH=true; if it is, its NATS user may not subscribe to %s "+
				"(stage setup --print-permissions)", cfg.Name, subject)
		}
		return fmt.Errorf("no stage named %s answers on %s: is stage run running on this server, "+
			"and is STAGE_NAME right", cfg.Name, subject)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, batch.ErrSlow):
		return fmt.Errorf("stage %s has the request, but sent no reply within %v: "+
			"send fewer prompts at a time, or raise --timeout; "+
			"the stage finishes the batch anyway", cfg.Name, timeout)
	default:
		return fmt.Errorf("request on %s: %w", subject, err)
	}
}

// batchVerdict returns the error that the command ends with, or nil if a prompt was
// answered. A reply without results is not from a stage. For example, if a stream captures
// the subject, the server acknowledges the request before the stage replies.
func batchVerdict(cfg *config.Config, reply *nats.Msg) error {
	code := reply.Header.Get(micro.ErrorCodeHeader)
	if code == "" {
		var answer struct {
			Results []json.RawMessage `json:"results"`
		}
		if err := json.Unmarshal(reply.Data, &answer); err != nil || answer.Results == nil {
			return fmt.Errorf("the reply does not come from a stage: "+
				"does a stream of the server capture %s", config.BatchSubject(cfg.Name))
		}
		return nil
	}
	return batchRefusal(code, reply)
}

// batchRefusal turns a service error into an error whose type gives the exit code.
func batchRefusal(code string, reply *nats.Msg) error {
	err := fmt.Errorf("%s: %s", code, reply.Header.Get(micro.ErrorHeader))
	var body batch.ErrorBody
	if json.Unmarshal(reply.Data, &body) == nil && body.Fatal {
		return &stage.FatalError{Err: err}
	}
	if code == batch.CodeBadRequest || code == batch.CodeTooLarge || code == batch.CodeNotFound {
		return config.Invalid(err)
	}
	return err
}
