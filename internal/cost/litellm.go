package cost

import "strconv"

// LiteLLM publishes the prices of some thousand models in a file of 1.6 MB,
// model_prices_and_context_window.json. It names them as a file of prices does,
// "provider/model" or "model", and has USD per token:
//
//	"gpt-4.1-mini": {"litellm_provider": "openai", "input_cost_per_token": 4e-07, "output_cost_per_token": 1.6e-06, …}
//
// Of a model that costs more from a length of its prompt on, the first price counts.

// litellmMark is a member that each model of that list has, and none of a file of prices.
const litellmMark = "litellm_provider"

// litellmParts are the members that have a price of a token here.
var litellmParts = map[string]string{
	"input_cost_per_token":                      "input",
	"output_cost_per_token":                     "output",
	"cache_read_input_token_cost":               "cached",
	"cache_creation_input_token_cost":           "cache_write",
	"cache_creation_input_token_cost_above_1hr": "cache_write_1h",
	"output_cost_per_reasoning_token":           "reasoning",
	"input_cost_per_token_batches":              "batch_input",
	"output_cost_per_token_batches":             "batch_output",
}

// isLiteLLM reports whether a file is LiteLLM's list.
func isLiteLLM(models map[string]any) bool {
	for _, model := range models {
		if parts, ok := model.(map[string]any); ok && parts[litellmMark] != nil {
			return true
		}
	}
	return false
}

// readLiteLLM returns the models of the list that are paid by the token. The others, such as
// those of pictures, and the example that the list begins with, are no error.
func readLiteLLM(models map[string]any, inputAlone bool) Prices {
	p := make(Prices)
	for model, value := range models {
		parts, ok := value.(map[string]any)
		if !ok || model == "sample_spec" {
			continue
		}
		var price Price
		for member, name := range litellmParts {
			if usd, ok := usdOf(parts[member]); ok && usd != nil && *usd >= 0 && *usd <= priceMax/million {
				*price.part(name) = perMillion(*usd)
			}
		}
		if inputAlone {
			price.writeNothing()
		}
		if price.BatchInput == nil || price.BatchOutput == nil { // of use only together
			price.BatchInput, price.BatchOutput, price.BatchCached = nil, nil, nil
		}
		if price.Input != nil && price.Output != nil {
			p[model] = price
		}
	}
	return p
}

const million = 1e6

// perMillion turns the price of a token into the price of a million. 3e-07 times a million is
// not .3 in binary, so it is rounded to what was meant.
func perMillion(usd float64) *float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(usd*million, 'g', 12, 64), 64)
	return &rounded
}
