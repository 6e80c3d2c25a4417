package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// settlePoll is the time between two looks for the owner of the rows.
const settlePoll = 20 * time.Millisecond

// checkOrder refuses to change the order of the results while rows of the job wait that
// others have overtaken. For example, with --order none row 9 has its result and row 7
// does not: in stream order, the result of row 7 would come after that of row 9. The
// consumer would refuse it, too, but only after the output was begun, and in words that
// do not fit a job.
func checkOrder(ctx context.Context, nc *nats.Conn, cfg *config.Config, name string) error {
	end, err := stored.LastMessage(ctx, nc, cfg.Result.Stream, stored.LogSubject(cfg, 0, ">"))
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound): // the job was killed before it began
		return nil
	case err != nil || end == nil || end.Header.Get(streams.HeaderAhead) == "":
		return err
	}
	claim, err := stored.LastMessage(ctx, nc, cfg.Result.Stream,
		stored.LogSubject(cfg, 0, "claim"))
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
		"job %s: some of its rows wait while later ones have their results, "+
			"so the order of the results may not change from %s to %s now: "+
			"run the same command with %[2]s until it is done, or start over with --fresh, "+
			"which discards the results, or give this job another name with --job",
		name, orderFlags(then.Order, then.Key), orderFlags(order.Mode, order.Key.String())))
}

func orderFlags(order streams.Order, key string) string {
	flags := "--order " + string(cmp.Or(order, streams.OrderStream))
	if order == streams.OrderKey {
		flags += " --order-key " + key
	}
	return flags
}

// settle waits until the stage owns its rows, if the end of the log says that some rows
// wait which others have overtaken. By now all rows have their results, and when its term
// ends the owner notes that in the log. If the run ended before there was an owner, the
// old note would stay, and the order of the job could never be changed.
func (p *Pipeline) settle(ctx context.Context) error {
	cfg := p.Stage.Cfg
	if cfg.Order.OfStream() {
		return nil
	}
	end, err := stored.LastMessage(ctx, p.Stage.Conn.NC(), cfg.Result.Stream,
		stored.LogSubject(cfg, 0, ">"))
	switch {
	case ctx.Err() != nil:
		return nil // everything is written
	case err != nil || end == nil || end.Header.Get(streams.HeaderAhead) == "":
		return err
	}
	poll := time.NewTicker(settlePoll)
	defer poll.Stop()
	for !slices.ContainsFunc(p.Stage.Status().Partitions,
		func(r status.PartitionReport) bool { return r.Role == string(consumer.Owner) }) {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil // everything is written
		}
	}
	return nil
}

// spanOf returns how far rows may run ahead. With a limit it is no more than the window.
// An earlier run may have loaded more rows than the limit: while one of the first rows
// waits, only as many of the others are called as in stream order, since nobody wants
// their results.
func spanOf(cfg *config.Config, limit int64) int {
	if limit == 0 {
		return cfg.Order.Span
	}
	return min(cfg.Order.Span, cfg.Window.Rows)
}
