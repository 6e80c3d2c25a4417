package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/dashboard"
	"github.com/spf13/cobra"
)

// mockAddr is the default address of the mock LLM. Its port follows the one of the default
// of STAGE_HTTP_ADDR.
const mockAddr = "127.0.0.1:9465"

// newMockLLMCommand makes stage mockllm, the built-in LLM as a server of its own. It uses
// no setting, only the flags below.
func newMockLLMCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "mockllm",
		Short:   "run a flaky LLM server for experiments: no key, no cost",
		GroupID: groupSetup,
		Args:    cobra.NoArgs,
	}
	var cfg llmtest.Config
	var schedule, errorShares string
	flags := cmd.Flags()

	// These say which calls the server admits, how fast it answers, and how often it
	// fails.
	addr := flags.String("addr", mockAddr, "address to listen on; port 0: any free port")
	flags.Float64Var(&cfg.Rate, "rate", 0,
		"calls admitted per second, others get a 429; 0: no limit")
	flags.StringVar(&schedule, "schedule", "",
		"rates over time instead of --rate, as rate:duration, repeated: 20:60s,5:60s")
	flags.IntVar(&cfg.Burst, "burst", 5, "calls admitted at once when idle")
	flags.IntVar(&cfg.MaxConcurrent, "max-concurrent", 0,
		"concurrent calls, others get a 429; 0: no limit")
	flags.DurationVar(&cfg.Latency, "latency", 0, "median latency")
	flags.Float64Var(&cfg.LatencySigma, "latency-sigma", 0,
		"sigma of its log-normal distribution; 0: constant")
	flags.StringVar(&errorShares, "errors", "",
		"shares of admitted calls that fail, by status: 429=.2,500=.01")

	// These are about embeddings.
	flags.DurationVar(&cfg.TextLatency, "text-latency", 0,
		"latency that each text of a call of embeddings adds")
	flags.IntVar(&cfg.Dimensions, "dimensions", 0,
		"numbers of a vector where the call does not say; 0: 256")
	faults := flags.String("vector-faults", "", "shares of calls of embeddings whose vectors are "+
		"wrong: fewer, more, shuffled, twice, null, huge, short, as fewer=.01,null=.02")

	flags.DurationVar(&cfg.RetryAfter, "retry-after", 0,
		"Retry-After of a 429, 503 or 529; 0: none")
	flags.Uint64Var(&cfg.Seed, "seed", 1,
		"seed of latencies and errors: the same calls in the same order get the same")

	// These are about the Batch API.
	flags.DurationVar(&cfg.Batches.Delay, "batch-delay", 0, "how long a batch takes")
	flags.Float64Var(&cfg.Batches.Expire, "batch-expire", 0,
		"share of batches that expire after --batch-delay, 0 to 1, "+
			"partly answered where the provider has it so; not Azure's")
	batchFail := flags.Float64("batch-fail", 0,
		"share of lines in batches that fail with status 500, 0 to 1")

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if cfg.Schedule, err = llmtest.ParseSchedule(schedule); err != nil {
			return config.Invalid(err)
		}
		if cfg.Errors, err = llmtest.ParseErrors(errorShares); err != nil {
			return config.Invalid(err)
		}
		if cfg.VectorFaults, err = llmtest.ParseVectorFaults(*faults); err != nil {
			return config.Invalid(err)
		}

		if len(cfg.Schedule) > 0 && cfg.Rate > 0 {
			return config.Invalid(errors.New("--rate and --schedule exclude each other"))
		}
		if *batchFail != 0 {
			cfg.Batches.Fail = map[int]float64{http.StatusInternalServerError: *batchFail}
		}
		mock, err := llmtest.New(cfg)
		if err != nil {
			return config.Invalid(err)
		}
		return serveMock(cmd.Context(), env, *addr, mock)
	}
	return cmd
}

// serveMock serves until a signal, or until ctx ends. After the first signal the calls in
// flight have two seconds to finish.
func serveMock(ctx context.Context, env *Env, addr string, mock *llmtest.Server) error {
	soft, hard, stop := env.Contexts(ctx)
	defer stop()
	listener, err := dashboard.Listen(soft, addr, false, "--addr")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(env.Stdout, "http://%s/v1\n", listener.Addr()); err != nil {
		return err
	}
	server := &http.Server{
		Handler: mock, ReadHeaderTimeout: dashboard.ReadTimeout,
		IdleTimeout: dashboard.IdleTimeout,
	}
	if err := dashboard.ServeUntil(soft, hard, server, listener); err != nil {
		return err
	}
	s := mock.Stats()
	_, err = fmt.Fprintf(env.Stderr, "%d calls: %d answered, %d rejected for capacity, %d failed, "+
		"%d abandoned; at most %d at a time\n",
		s.Received, s.Answered, s.Rejected(), s.Injected+s.Invalid, s.Abandoned, s.MaxInFlight)
	if b := s.Batches; err == nil && b.Created > 0 {
		_, err = fmt.Fprintf(env.Stderr, "%d batches: %d completed, %d expired, %d cancelled, "+
			"%d failed, %d running; lines: %d answered, %d failed, %d lapsed\n",
			b.Created, b.Completed, b.Expired, b.Cancelled, b.Failed, b.Running,
			b.Answered, b.LineErrors, b.Lapsed)
	}
	return err
}
