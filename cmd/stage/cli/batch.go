package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"
)

func newBatchCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "batch [FILE]",
		Short:   "send one batched request to a running stage, print the reply",
		GroupID: groupWork,
		Args:    cobra.MaximumNArgs(1),
		Long: "batch sends the request in FILE (or - for standard input, which is the default) to a stage that runs, and prints its reply.\n" +
			"A request is a JSON object: \"prompts\", a list; and as you like \"contexts\", a list of as many texts or nulls, each sent\n" +
			"before its prompt; \"max_parallel\"; \"model\". Prompts that failed are errors in the reply. When none was answered the\n" +
			"reply is an error with its facts, and the exit code 1; 2 if the request is wrong; 3 if the account, the key or the\n" +
			"address must be mended first.",
		Example: "  echo '{\"prompts\": [\"Name a colour.\", \"Name a fruit.\"]}' | stage batch --nats-url nats://localhost:4222\n" +
			"  stage batch questions.json --name reviews | jq -r '.results[].content'\n" +
			"  stage batch questions.json --data-dir stage-data      # the stage that runs with its own server there",
	}
	timeout := cmd.Flags().Duration("timeout", 10*time.Minute, "how long to wait for the reply; 0: for ever")
	flags := newConfigFlags(cmd, env, configFlagsOptions{Groups: []string{"Stage", "NATS", "Embedded server"}})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := flags.Load(cmd.Context(), config.NeedNothing)
		if err != nil {
			return err
		}
		if *timeout < 0 {
			return config.Invalid(errors.New("--timeout: must not be negative"))
		}
		soft, _, stop := env.Contexts(cmd.Context())
		defer stop()
		file := "-"
		if len(args) > 0 {
			file = args[0]
		}
		return sendBatch(soft, env, cfg, file, *timeout)
	}
	return cmd
}

// sendBatch sends the request of a file and prints the reply.
func sendBatch(ctx context.Context, env *Env, cfg *config.Config, file string, timeout time.Duration) error {
	request, err := readBatchFile(ctx, env, file)
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
	defer conn.Close()
	if limit := int(conn.NC.MaxPayload()) - batch.Headroom; len(request) > limit {
		return config.Invalid(fmt.Errorf("the request takes %d bytes, the server's messages at most %d: send several batches", len(request), limit))
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	reply, err := requestBatch(ctx, conn.NC, config.BatchSubject(cfg.Name), request)
	if err != nil {
		return batchNotAnswered(ctx, cfg, timeout, err)
	}
	if err := printBatchReply(env.Stdout, reply.Data); err != nil {
		return err
	}
	return batchVerdict(cfg, reply)
}

const (
	// batchSearch is how long to look for a stage that answers: one may be about to start, or to take over.
	batchSearch = 5 * time.Second
	batchLook   = 200 * time.Millisecond
)

// requestBatch sends the request to whoever answers.
func requestBatch(ctx context.Context, nc *nats.Conn, subject string, request []byte) (*nats.Msg, error) {
	for end := time.Now().Add(batchSearch); ; {
		reply, err := nc.RequestWithContext(ctx, subject, request)
		if !errors.Is(err, nats.ErrNoResponders) || time.Now().After(end) {
			return reply, err
		}
		select {
		case <-time.After(batchLook):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// readBatchFile reads a request and finds what is wrong with it before anybody is asked.
func readBatchFile(ctx context.Context, env *Env, name string) ([]byte, error) {
	var text []byte
	var err error
	if name == "-" {
		name = "standard input"
		text, err = io.ReadAll(stopping.Reader(ctx, env.Stdin))
	} else {
		text, err = os.ReadFile(name)
	}
	if err == nil {
		_, err = batch.ReadRequest(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// connectRunning connects to the server of the configuration, else to the embedded one of a stage that runs.
func connectRunning(ctx context.Context, cfg *config.Config, log *slog.Logger) (*natsconn.Conn, error) {
	if len(cfg.NATS.URL) == 0 {
		_, running, err := natsd.Discover(cfg.Data.Dir)
		if err != nil {
			return nil, err
		}
		if !running {
			return nil, fmt.Errorf("no stage runs with a server of its own on %s: start one with stage run, name its store with --data-dir, or a server with --nats-url", cfg.Data.Dir)
		}
	}
	return natsconn.ConnectReader(ctx, cfg, cfg.Data.Dir, false, log)
}

// batchNotAnswered says why there is no reply.
func batchNotAnswered(ctx context.Context, cfg *config.Config, timeout time.Duration, err error) error {
	switch subject := config.BatchSubject(cfg.Name); {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("no stage named %s answers on %s: is stage run running on this server, and is STAGE_NAME right", cfg.Name, subject)
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("no reply within %v: ask for fewer prompts at a time, or give more time with --timeout; the stage finishes the batch all the same", timeout)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return fmt.Errorf("request on %s: %w", subject, err)
	}
}

func printBatchReply(w io.Writer, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s\n", body)
	return err
}

// batchVerdict is the error that the command ends with: nil when a prompt was answered.
func batchVerdict(cfg *config.Config, reply *nats.Msg) error {
	code := reply.Header.Get(micro.ErrorCodeHeader)
	if code == "" {
		var answer struct {
			Results []json.RawMessage `json:"results"`
		}
		if err := json.Unmarshal(reply.Data, &answer); err != nil || answer.Results == nil {
			return fmt.Errorf("the answer is not one of a stage: does a stream of the server capture %s", config.BatchSubject(cfg.Name))
		}
		return nil
	}
	err := fmt.Errorf("%s: %s", code, reply.Header.Get(micro.ErrorHeader))
	var body batch.ErrorBody
	if json.Unmarshal(reply.Data, &body) == nil && body.Fatal {
		return &stage.FatalError{Err: err}
	}
	if code == batch.CodeBadRequest || code == batch.CodeTooLarge {
		return config.Invalid(err)
	}
	return err
}
