package config

import (
	"fmt"

	"github.com/llm-stage/stage/internal/cost"
)

// Prices reads the price file. The prices are nil if no file is set. embeds selects the
// prices of embeddings. The error is an [*Error] that names the variable.
func (c *CostConfig) Prices(embeds bool) (cost.Prices, error) {
	if c.PricesFile == "" {
		return nil, nil
	}
	p, err := cost.LoadPrices(c.PricesFile, embeds)
	if err != nil {
		return nil, Invalid(fmt.Errorf("STAGE_PRICES_FILE: %w", plainPathError(err)))
	}
	return p, nil
}

// check checks the prices, and that a ceiling can be enforced. A call without a price
// adds nothing to the known cost, so it would never reach the ceiling: each model that
// may be called needs a price. The batch lane calls the first model alone, at the price
// of batches, so that model needs that price, too.
func (c *CostConfig) check(models []FallbackModel, lane, embeds bool, found *problems) {
	if !found.none("STAGE_PRICES_FILE", "STAGE_MAX_COST_USD") {
		return
	}
	if c.PricesFile == "" {
		if c.MaxUSD > 0 {
			found.add("STAGE_MAX_COST_USD", "a ceiling needs prices: set STAGE_PRICES_FILE")
		}
		return
	}
	p, err := cost.LoadPrices(c.PricesFile, embeds)
	if err != nil {
		found.add("STAGE_PRICES_FILE", "%v", plainPathError(err))
		return
	}

	for i, m := range models {
		_, ok := p.LookupBatch(m.Provider, m.Model)
		if lane && i == 0 && !ok && c.MaxUSD > 0 && m.Model != "" {
			found.add("STAGE_MAX_COST_USD", "the ceiling cannot be enforced for batches without "+
				"their price for %s: add batch_input and batch_output to it in STAGE_PRICES_FILE, "+
				"or unset STAGE_LANE", m.Model)
			continue
		}
		if _, ok := p.Lookup(m.Provider, m.Model); !ok && c.MaxUSD > 0 && m.Model != "" {
			found.add("STAGE_MAX_COST_USD", "the ceiling cannot be enforced without a price for "+
				"%s: add %s/%s to STAGE_PRICES_FILE", m.Model, m.Provider, m.Model)
		}
	}
}
