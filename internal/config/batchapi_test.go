package config

import (
	"slices"
	"testing"

	"github.com/llm-stage/stage/llm"
)

// TestOnlyAProviderWhoseLineSaysSoHasABatchAPI: one that is added by its one line has none until somebody has written it.
func TestOnlyAProviderWhoseLineSaysSoHasABatchAPI(t *testing.T) {
	if HasBatchAPI("newcomer") {
		t.Error("a provider without a line has a Batch API")
	}
	without := 0
	for _, name := range llm.Providers() {
		p, ok := llm.LookupProvider(name)
		if !ok || HasBatchAPI(name) != p.Batches {
			t.Errorf("%s: has a Batch API: %v, its line says %v", name, HasBatchAPI(name), p.Batches)
		}
		if !p.Batches {
			without++
		}
	}
	if known := llm.Providers(); without == 0 || !slices.Contains(known, llm.OpenRouter) || HasBatchAPI(llm.OpenRouter) {
		t.Errorf("%d of %v have no Batch API, want openrouter", without, known)
	}
}
