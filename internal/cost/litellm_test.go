package cost

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// The list of LiteLLM, with an example at its beginning, models that are not paid by the token, and members that say
// nothing of prices. A list as long as the real one is read.
func TestLiteLLMsListIsAFileOfPrices(t *testing.T) {
	var list strings.Builder
	list.WriteString(`{
    "sample_spec": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "max_tokens": "LEGACY parameter.", "litellm_provider": "one of them", "supported_regions": ["global"]},
    "1024-x-1024/dall-e-2": {"input_cost_per_pixel": 1.9e-08, "litellm_provider": "openai", "mode": "image_generation", "output_cost_per_pixel": 0.0},
    "gpt-x-mini": {"litellm_provider": "openai", "input_cost_per_token": 3e-07, "output_cost_per_token": 1.6e-06, "cache_read_input_token_cost": 7.5e-08,
        "input_cost_per_token_batches": 1.5e-07, "output_cost_per_token_batches": 8e-07, "mode": "chat", "max_tokens": 16384, "supports_vision": true},
    "anthropic/claude-x": {"litellm_provider": "anthropic", "input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05, "cache_creation_input_token_cost": 3.75e-06,
        "cache_creation_input_token_cost_above_1hr": 6e-06, "input_cost_per_token_above_200k_tokens": 6e-06, "output_cost_per_token_batches": 7.5e-06}`)
	for i := range 3000 {
		fmt.Fprintf(&list, ",\n    \"some/model-%d\": {\"input_cost_per_token\": 1e-06, \"litellm_provider\": \"some\", \"output_cost_per_token\": 2e-06, %s}", i,
			strings.TrimSuffix(strings.Repeat(`"supports_something_or_other": true, `, 1)+strings.Repeat(`"source": "`+strings.Repeat("x", 300)+`", `, 1), ", "))
	}
	list.WriteString("\n}\n")
	p, err := parsePrices([]byte(list.String()), false)
	if err != nil || len(p) != 3002 {
		t.Fatalf("%d models, %v", len(p), err)
	}
	number := func(f float64) *float64 { return &f }
	if got, want := p["gpt-x-mini"], (Price{Input: number(.3), Cached: number(.075), Output: number(1.6), BatchInput: number(.15), BatchOutput: number(.8)}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := p["anthropic/claude-x"], (Price{Input: number(3), CacheWrite: number(3.75), CacheWrite1h: number(6), Output: number(15)}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
