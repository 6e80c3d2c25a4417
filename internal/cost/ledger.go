// Package cost prices calls: prices, the spending ceiling, and totals for each model.
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

// Ledger prices calls and adds up their cost, up to a ceiling. It is safe for concurrent
// use.
type Ledger struct {
	prices  Prices  // may be empty
	ceiling float64 // USD, or 0

	mu       sync.Mutex
	spent    float64             // known cost in USD, earlier runs included
	reserved float64             // USD: what open batches may still cost
	batches  map[string]*account // by token
	closed   []string            // tokens of settled batches, oldest first
}

// NewLedger returns a ledger with nothing spent. The prices may be nil; the ceiling is in
// USD, or 0 for none.
func NewLedger(p Prices, ceiling float64) *Ledger {
	return &Ledger{prices: p, ceiling: ceiling, batches: make(map[string]*account)}
}

// Ceiling returns the known cost in USD at which no call may start; 0 means that there is
// no ceiling.
func (l *Ledger) Ceiling() float64 { return l.ceiling }

// Spent returns the known cost so far, in USD.
func (l *Ledger) Spent() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent
}

// Price sets the cost of a call that reported tokens and no cost. It uses the price of
// the model that was requested or, if that has none, the price of the model that
// answered; for a batch it uses the batch price. Without a price the cost stays unknown.
func (l *Ledger) Price(c *auditlog.Call, answered string) {
	if c.Usage == nil || c.Usage.CostUSD != nil || len(l.prices) == 0 {
		return
	}
	look := l.prices.Lookup
	if c.Lane == auditlog.LaneBatch {
		look = l.prices.LookupBatch
	}
	if v, ok := look(c.Provider, c.Model, answered); ok {
		cost := v.Cost(c.Usage)
		c.Usage.CostUSD = &cost
	}
}

// Spend adds the cost of a call, if it is known.
func (l *Ledger) Spend(c *auditlog.Call) {
	if c.Usage == nil || c.Usage.CostUSD == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Lane == auditlog.LaneBatch {
		l.spendBatch(c)
		return
	}
	l.spent += *c.Usage.CostUSD
}

// Exhausted returns an error with [ErrCeiling] when no call may start; nil means one may.
func (l *Ledger) Exhausted() error {
	if l.ceiling == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spent+l.reserved < l.ceiling {
		return nil
	}
	batches := ""
	if l.reserved > 0 {
		batches = fmt.Sprintf(" and %.6f USD reserved for open batches", l.reserved)
	}
	return fmt.Errorf("%w: the known cost, %.6f USD with earlier runs%s, is at STAGE_MAX_COST_USD, %g: raise it and start again", ErrCeiling, l.spent, batches, l.ceiling)
}

// Affords returns an [*llm.Error] where a row names a model without a price and there is
// a ceiling: the cost of its calls would be unknown, so the ceiling could not be
// enforced. Only that row fails; rows that name no model are processed.
func (l *Ledger) Affords(provider, model string) error {
	if l.ceiling == 0 || model == "" {
		return nil
	}
	if _, ok := l.prices.Lookup(provider, model); ok {
		return nil
	}
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Provider: provider,
		Err: fmt.Errorf("no call was made: the model %.100q of the row has no price, so STAGE_MAX_COST_USD could not be enforced: add %.100s/%.100s to STAGE_PRICES_FILE", model, provider, model),
	}
}
