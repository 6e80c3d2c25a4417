package stage

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
)

// recallCost adds the cost of earlier runs to the ledger, as far back as the audit goes:
// without it each restart could spend the whole ceiling again. Without a ceiling it reads
// nothing. A call whose cost was unknown then gets today's price.
//
// A batch of the lane that is over counts with its bill. The cost of an open one is
// reserved by the owner of its partition, which reads its record.
func recallCost(
	ctx context.Context, cfg *config.Config, nc *nats.Conn, l *cost.Ledger, log *slog.Logger,
) error {
	if l.Ceiling() == 0 {
		return nil
	}
	js, err := streams.JetStream(nc)
	if err != nil {
		return err
	}
	calls := 0
	kinds := []auditlog.Kind{auditlog.KindCall}
	if cfg.LaneOn() {
		kinds = append(kinds, auditlog.KindBatch)
	}
	spend := func(_ []byte, e *auditlog.Event) error {
		switch {
		case e == nil:
		case e.Call != nil:
			calls++
			l.Price(e.Call, e.Call.Model)
			l.Spend(e.Call)
		case e.Batch != nil && e.Batch.Phase.Over() && e.Batch.Usage != nil &&
			e.Batch.Usage.CostUSD != nil:
			l.Settle(e.Batch.Token, *e.Batch.Usage.CostUSD)
		}
		return nil
	}
	if err := stored.ReadAudit(ctx, js, cfg, stored.ReadOptions{}, kinds, spend); err != nil {
		return fmt.Errorf("cost of earlier runs, for STAGE_MAX_COST_USD: %w", err)
	}
	if calls > 0 {
		log.Info("cost of earlier runs counted", slog.Int("calls", calls),
			slog.Float64("cost_usd", l.Spent()), slog.Float64("ceiling_usd", l.Ceiling()))
	}
	return nil
}
