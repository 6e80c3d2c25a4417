// Package cost knows what calls cost: prices, the spending ceiling, and totals for each model.
package cost

import (
	"errors"
	"fmt"
	"sync"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
)

// ErrCeiling is in the error of a pause at STAGE_MAX_COST_USD.
var ErrCeiling = errors.New("cost ceiling reached")

// Ledger knows what calls cost, and whether another one may start. Safe for concurrent use.
type Ledger struct {
	prices  Prices  // may be empty
	ceiling float64 // USD; 0: none

	mu    sync.Mutex
	spent float64 // what is known, of earlier runs too
}

// NewLedger returns a ledger of nothing spent. The prices may be nil; a ceiling of 0 is none.
func NewLedger(p Prices, ceiling float64) *Ledger { return &Ledger{prices: p, ceiling: ceiling} }

// Ceiling returns the most that calls may cost, in USD; 0: there is no ceiling.
func (l *Ledger) Ceiling() float64 { return l.ceiling }

// Spent returns the known cost so far, in USD.
func (l *Ledger) Spent() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent
}

// Price notes the cost of a call that told its tokens: as the provider told it, else by the price of the model that was
// asked, else by that of the one that answered. Without a price it stays unknown.
func (l *Ledger) Price(c *auditlog.Call, answered string) {
	if c.Usage == nil || c.Usage.CostUSD != nil {
		return
	}
	if v, ok := l.prices.Of(c.Provider, c.Model, answered); ok {
		cost := v.Live().Cost(c.Usage)
		c.Usage.CostUSD = &cost
	}
}

// Spend counts a call.
func (l *Ledger) Spend(c *auditlog.Call) {
	if c.Usage == nil || c.Usage.CostUSD == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spent += *c.Usage.CostUSD
}

// Exhausted returns why no call may start; nil: one may.
func (l *Ledger) Exhausted() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ceiling == 0 || l.spent < l.ceiling {
		return nil
	}
	return fmt.Errorf("%w: the known cost, %.6f USD with earlier runs, is at STAGE_MAX_COST_USD, %g: raise it and start again", ErrCeiling, l.spent, l.ceiling)
}

// Affords returns an error where a row names a model without a price and there is a ceiling: what its calls cost would not
// be known, so the ceiling could not be kept. It is about the row alone: those that name no model go on.
func (l *Ledger) Affords(provider, model string) error {
	if l.ceiling == 0 || model == "" {
		return nil
	}
	if _, ok := l.prices.Of(provider, model); ok {
		return nil
	}
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Provider: provider,
		Err: fmt.Errorf("no call was made: the model %.100q of the row has no price, so STAGE_MAX_COST_USD could not be kept: add %.100s/%.100s to STAGE_PRICES_FILE", model, provider, model),
	}
}
