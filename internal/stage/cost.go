package stage

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// recallCost adds the cost of earlier runs to the ledger, as far back as the audit goes. Without a ceiling it reads
// nothing. A call whose cost was unknown then gets today's price.
func (s *Stage) recallCost(ctx context.Context) error {
	l, cfg := s.ledger, s.Cfg
	if l.Ceiling() == 0 {
		return nil
	}
	js, err := jetstream.New(s.Conn.NC)
	if err != nil {
		return err
	}
	calls := 0
	err = stored.ReadAudit(ctx, js, cfg, stored.ReadOptions{}, []auditlog.Kind{auditlog.KindCall}, func(_ []byte, e *auditlog.Event) error {
		if e != nil && e.Call != nil {
			calls++
			l.Price(e.Call, e.Call.Model)
			l.Spend(e.Call)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cost of earlier runs, for STAGE_MAX_COST_USD: %w", err)
	}
	if calls > 0 {
		s.Log.Info("cost of earlier runs counted", slog.Int("calls", calls), slog.Float64("cost_usd", l.Spent()), slog.Float64("ceiling_usd", l.Ceiling()))
	}
	return nil
}
