package config

import (
	"fmt"

	"github.com/llm-stage/stage/internal/cost"
)

// Prices reads the price file: the prices of the stage's task. They are nil if no file is
// set. The error is an [*Error] that names the variable.
func (c *Config) Prices() (cost.Prices, error) {
	if c.Cost.PricesFile == "" {
		return nil, nil
	}
	p, err := cost.LoadPrices(c.Cost.PricesFile, c.Embeds())
	if err != nil {
		return nil, Invalid(fmt.Errorf("STAGE_PRICES_FILE: %w", plainPathError(err)))
	}
	return p, nil
}

// checkCost checks the prices, and that a ceiling can be enforced. A call without a price
// adds nothing to the known cost, so it would never reach the ceiling: each model that
// may be called needs a price. The batch lane calls the first model alone, at the price
// of batches, so that model needs that price, too.
func (c *checker) checkCost() {
	if !c.none("STAGE_PRICES_FILE", "STAGE_MAX_COST_USD") {
		return
	}
	if c.Cost.PricesFile == "" {
		if c.Cost.MaxUSD > 0 {
			c.add("STAGE_MAX_COST_USD", "a ceiling needs prices: set STAGE_PRICES_FILE")
		}
		return
	}
	p, err := cost.LoadPrices(c.Cost.PricesFile, c.Embeds())
	if err != nil {
		c.add("STAGE_PRICES_FILE", "%v", plainPathError(err))
		return
	}

	if c.need != NeedCalls {
		return
	}
	models := append([]FallbackModel{{c.LLM.Provider, c.LLM.Model}}, c.Fallback.Models...)
	for i, m := range models {
		_, ok := p.LookupBatch(m.Provider, m.Model)
		if c.LaneOn() && i == 0 && !ok && c.Cost.MaxUSD > 0 && m.Model != "" {
			c.add("STAGE_MAX_COST_USD", "the ceiling cannot be enforced for batches without "+
				"their price for %s: add batch_input and batch_output to it in STAGE_PRICES_FILE, "+
				"or unset STAGE_LANE", m.Model)
			continue
		}
		if _, ok := p.Lookup(m.Provider, m.Model); !ok && c.Cost.MaxUSD > 0 && m.Model != "" {
			c.add("STAGE_MAX_COST_USD", "the ceiling cannot be enforced without a price for "+
				"%s: add %s/%s to STAGE_PRICES_FILE", m.Model, m.Provider, m.Model)
		}
	}
}
