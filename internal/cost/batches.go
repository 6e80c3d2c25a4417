package cost

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/seqset"
)

// closedMax bounds the batches that are remembered after they are settled, in case an
// answer is read once more.
const closedMax = 4096

// account is what one batch of a provider's Batch API costs: its estimate until it is
// settled, then what it was billed; at least what the calls that name it came to. Answers
// that no row used are billed too, and have no call.
type account struct {
	open    bool    // reserved, and not settled
	floor   float64 // USD: the estimate while the batch is open, then the bill
	counted float64 // USD, by calls
	rows    seqset.Set
}

// known is the part of the cost that is known to be spent.
func (a *account) known() float64 {
	if a.open {
		return a.counted
	}
	return max(a.floor, a.counted)
}

// reserved is what the batch may still cost.
func (a *account) reserved() float64 {
	if a.open {
		return max(0, a.floor-a.counted)
	}
	return 0
}

// Reserve reserves the estimated cost of a batch before it is submitted. The estimate
// counts towards the ceiling until [Ledger.Settle]. For example, with a ceiling of 10 USD
// and 8 USD spent, a batch of 3 USD gets an error with [ErrCeiling] and reserves nothing.
// usd 0 means that the cost is unknown; such a batch is accepted while any money is left.
// A second call for the same token replaces the first.
func (l *Ledger) Reserve(token string, usd float64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.ceiling - l.spent - l.reserved
	if a := l.batches[token]; a != nil {
		left += a.reserved()
	}
	if l.ceiling > 0 && (left <= 0 || usd > left) {
		return fmt.Errorf("%w: a batch of about %.6f USD does not fit below STAGE_MAX_COST_USD, %g, with %.6f USD spent and %.6f USD reserved for open batches: "+
			"raise it and start again, or make the batches smaller (STAGE_LANE_ROWS)", ErrCeiling, usd, l.ceiling, l.spent, l.reserved)
	}
	l.reserve(token, usd)
	return nil
}

// ReserveAgain is Reserve for a batch that the provider has already, such as one of an earlier
// run: it is never refused.
func (l *Ledger) ReserveAgain(token string, usd float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve(token, usd)
}

func (l *Ledger) reserve(token string, usd float64) {
	l.change(token, func(a *account) { a.open, a.floor = true, usd })
}

// Settle replaces the reservation of a batch by its bill, which includes answers that no
// row used. usd is 0 if nothing was billed or if the bill is unknown. Calls of the batch
// that are counted later are part of the bill, so they add nothing to it.
func (l *Ledger) Settle(token string, usd float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change(token, func(a *account) { a.open, a.floor = false, usd })
	l.closed = append(l.closed, token)
	l.forget()
}

// Reserved returns what open batches may still cost, in USD.
func (l *Ledger) Reserved() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserved
}

// spendBatch adds the cost of a call that a batch answered, once: the results of a batch
// are read again after a crash.
func (l *Ledger) spendBatch(c *auditlog.Call) {
	at := strings.LastIndexByte(c.CallID, '-')
	seq, err := strconv.ParseUint(c.CallID[at+1:], 10, 64)
	if at < 0 || err != nil {
		l.spent += *c.Usage.CostUSD
		return
	}
	token := c.CallID[:at]
	if l.batches[token] == nil { // not reserved by this process
		l.closed = append(l.closed, token)
		l.forget()
	}
	l.change(token, func(a *account) {
		if a.rows.Add(seq) {
			a.counted += *c.Usage.CostUSD
		}
	})
}

// change changes the account of a batch and with it the sums.
func (l *Ledger) change(token string, f func(*account)) {
	a := l.batches[token]
	if a == nil {
		a = new(account)
		l.batches[token] = a
	}
	known, reserved := a.known(), a.reserved()
	f(a)
	l.spent += a.known() - known
	l.reserved += a.reserved() - reserved
}

// forget drops the oldest closed batches beyond the bound.
func (l *Ledger) forget() {
	for ; len(l.closed) > closedMax; l.closed = l.closed[1:] {
		if a := l.batches[l.closed[0]]; a != nil && !a.open {
			delete(l.batches, l.closed[0])
		}
	}
}

// EstimateBatch returns what a call with so many tokens may cost by a provider's Batch
// API, in USD, or 0 if it is unknown.
func (l *Ledger) EstimateBatch(provider, model string, prompt, completion int64) float64 {
	v, ok := l.prices.LookupBatch(provider, model)
	if !ok {
		return 0
	}
	return v.Cost(&auditlog.Usage{PromptTokens: prompt, CompletionTokens: completion})
}

// AffordsBatch reports whether a model may be called by a provider's Batch API: with a
// ceiling only one with a price for it, since else nothing could be reserved.
func (l *Ledger) AffordsBatch(provider, model string) bool {
	_, ok := l.prices.LookupBatch(provider, model)
	return ok || l.ceiling == 0
}

// LookupBatch returns the price by the provider's Batch API of the first of these models
// that has one.
func (p Prices) LookupBatch(provider string, models ...string) (Price, bool) {
	for _, model := range models {
		if v, ok := p.Lookup(provider, model); ok && v.BatchInput != nil && v.BatchOutput != nil {
			return Price{Input: v.BatchInput, Cached: v.BatchCached, Output: v.BatchOutput}, true
		}
	}
	return Price{}, false
}
