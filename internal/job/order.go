package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// checkOrder refuses another order of the results than that of the job where rows of it wait that others have overtaken:
// the consumer would refuse it, too, but after the output was begun, and in words that are not a job's.
func checkOrder(ctx context.Context, nc *nats.Conn, cfg *config.Config, name string) error {
	end, err := streams.LastMessage(ctx, nc, cfg.Result.Stream, stored.LogSubject(cfg, 0, ">"))
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound): // it was killed before it began
		return nil
	case err != nil || end == nil || end.Header.Get(streams.HeaderAhead) == "":
		return err
	}
	claim, err := streams.LastMessage(ctx, nc, cfg.Result.Stream, stored.LogSubject(cfg, 0, "claim"))
	if err != nil || claim == nil {
		return err
	}
	var then streams.Claim
	if err := json.Unmarshal(claim.Data, &then); err != nil {
		return fmt.Errorf("claim %d of stream %s: %w", claim.Sequence, cfg.Result.Stream, err)
	}
	order := &cfg.Order
	if then.SameOrder(order.Mode, order.Key.String()) {
		return nil
	}
	return config.Invalid(fmt.Errorf(
		"job %s: some of its rows wait while later ones have their results, so the order of the results may not change from %s to %s now: "+
			"run the same command with %[2]s until it is done, or start over with --fresh, which discards the results, or give this job another name with --job",
		name, orderFlags(then.Order, then.Key), orderFlags(order.Mode, order.Key.String())))
}

// orderFlags returns the flags of an order.
func orderFlags(order streams.Order, key string) string {
	flags := "--order " + string(cmp.Or(order, streams.OrderStream))
	if order == streams.OrderKey {
		flags += " --order-key " + key
	}
	return flags
}
