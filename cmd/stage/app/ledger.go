package app

import (
	"errors"
	"fmt"
	"sync"

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

// newLedger returns a ledger of nothing spent. The prices may be nil; a ceiling of 0 is none.
func newLedger(p prices, ceiling float64) *ledger { return &ledger{prices: p, ceiling: ceiling} }

// Ceiling returns the most that calls may cost, in USD; 0: there is no ceiling.
func (l *ledger) Ceiling() float64 { return l.ceiling }

// Spent returns the known cost so far, in USD.
func (l *ledger) Spent() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent
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
