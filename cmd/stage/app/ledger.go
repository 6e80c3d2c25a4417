package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
)

// errCostCeiling is in the error of a pause at STAGE_MAX_COST_USD.
var errCostCeiling = errors.New("cost ceiling reached")

// ledger knows what calls cost, and whether another one may start. Safe for concurrent use.
type ledger struct {
	prices  prices  // may be empty
	ceiling float64 // USD; 0: none

	mu    sync.Mutex
	spent float64 // what is known, of earlier runs too
}

// newLedger reads the prices of the configuration.
func newLedger(cfg *Config) (*ledger, error) {
	l := &ledger{ceiling: cfg.Cost.MaxUSD}
	if cfg.Cost.PricesFile == "" {
		return l, nil
	}
	var err error
	if l.prices, err = loadPrices(cfg.Cost.PricesFile); err != nil {
		return nil, exitWith(exitUsage, fmt.Errorf("STAGE_PRICES_FILE: %w", err))
	}
	return l, nil
}

// price notes the cost of a call that told its tokens: as the provider told it, else by the price of the model that was
// asked, else by that of the one that answered. Without a price it stays unknown.
func (l *ledger) price(c *auditlog.Call, answered string) {
	if c.Usage == nil || c.Usage.CostUSD != nil {
		return
	}
	if v, ok := l.prices.of(c.Provider, c.Model, answered); ok {
		cost := v.live().cost(c.Usage)
		c.Usage.CostUSD = &cost
	}
}

// spend counts a call.
func (l *ledger) spend(c *auditlog.Call) {
	if c.Usage == nil || c.Usage.CostUSD == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spent += *c.Usage.CostUSD
}

// exhausted returns why no call may start; nil: one may.
func (l *ledger) exhausted() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ceiling == 0 || l.spent < l.ceiling {
		return nil
	}
	return fmt.Errorf("%w: the known cost, %.6f USD with earlier runs, is at STAGE_MAX_COST_USD, %g: raise it and start again", errCostCeiling, l.spent, l.ceiling)
}

// affords returns an error where a row names a model without a price and there is a ceiling: what its calls cost would not
// be known, so the ceiling could not be kept. It is about the row alone: those that name no model go on.
func (l *ledger) affords(provider, model string) error {
	if l.ceiling == 0 || model == "" {
		return nil
	}
	if _, ok := l.prices.of(provider, model); ok {
		return nil
	}
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Provider: provider,
		Err: fmt.Errorf("no call was made: the model %.100q of the row has no price, so STAGE_MAX_COST_USD could not be kept: add %.100s/%.100s to STAGE_PRICES_FILE", model, provider, model),
	}
}

// recall counts what the audit holds of earlier runs, as far back as it goes. Without a ceiling it reads nothing. A call
// whose cost was not known then is priced by today's prices.
func (l *ledger) recall(ctx context.Context, nc *nats.Conn, cfg *Config, log *slog.Logger) error {
	if l.ceiling == 0 {
		return nil
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	calls := 0
	err = readAudit(ctx, js, cfg, auditQuery{Kinds: []auditlog.Kind{auditlog.KindCall}}, func(_ []byte, e *auditlog.Event) error {
		if e != nil && e.Call != nil {
			calls++
			l.price(e.Call, e.Call.Model)
			l.spend(e.Call)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cost of earlier runs, for STAGE_MAX_COST_USD: %w", err)
	}
	if calls > 0 {
		log.Info("cost of earlier runs counts", slog.Int("calls", calls), slog.Float64("cost_usd", l.spent), slog.Float64("ceiling_usd", l.ceiling))
	}
	return nil
}

// check adds what is wrong with prices and ceiling.
func (c *CostConfig) check(asked []FallbackModel, found *faults) {
	if !found.none("STAGE_PRICES_FILE", "STAGE_MAX_COST_USD") {
		return
	}
	if c.PricesFile == "" {
		if c.MaxUSD > 0 {
			found.add("STAGE_MAX_COST_USD", "a ceiling needs prices: set STAGE_PRICES_FILE")
		}
		return
	}
	p, err := loadPrices(c.PricesFile)
	if err != nil {
		found.add("STAGE_PRICES_FILE", "%v", err)
		return
	}
	for _, m := range asked {
		if _, ok := p.of(m.Provider, m.Model); !ok && c.MaxUSD > 0 && m.Model != "" {
			found.add("STAGE_MAX_COST_USD", "the ceiling cannot be kept without a price of %s: add %s/%s to STAGE_PRICES_FILE", m.Model, m.Provider, m.Model)
		}
	}
}
