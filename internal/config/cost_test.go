package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestACeilingNeedsThePriceOfEveryModelThatMayBeCalled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prices.yaml")
	must(t, os.WriteFile(path, []byte("m: {input: 1, output: 1}\n"), 0o600))
	half := filepath.Join(t.TempDir(), "half.yaml") // a fallback is called live alone
	must(t, os.WriteFile(half, []byte("m: {input: 1, output: 1, batch_input: .5, batch_output: .5}\nlive: {input: 1, output: 1}\n"), 0o600))
	for _, test := range []struct {
		vars map[string]string
		want string
	}{
		{map[string]string{"STAGE_PRICES_FILE": path, "STAGE_MAX_COST_USD": "1"}, ""},
		{map[string]string{"STAGE_MAX_COST_USD": "1"}, "STAGE_MAX_COST_USD: a ceiling needs prices: set STAGE_PRICES_FILE"},
		{
			map[string]string{"STAGE_PRICES_FILE": path, "STAGE_MAX_COST_USD": "1", "STAGE_FALLBACKS": "mock:other"},
			"STAGE_MAX_COST_USD: the ceiling cannot be enforced without a price for other: add mock/other to STAGE_PRICES_FILE",
		},
		{map[string]string{"STAGE_PRICES_FILE": path, "STAGE_FALLBACKS": "mock:other"}, ""},
		{
			map[string]string{"STAGE_PRICES_FILE": path, "STAGE_MAX_COST_USD": "1", "STAGE_LANE": "batch"},
			"STAGE_MAX_COST_USD: the ceiling cannot be enforced for batches without their price for m: add batch_input and batch_output to it in STAGE_PRICES_FILE, or unset STAGE_LANE",
		},
		{map[string]string{"STAGE_PRICES_FILE": path, "STAGE_LANE": "batch"}, ""},
		{map[string]string{"STAGE_PRICES_FILE": half, "STAGE_MAX_COST_USD": "1", "STAGE_LANE": "batch", "STAGE_FALLBACKS": "mock:live"}, ""},
	} {
		environ := map[string]string{"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x"}
		maps.Copy(environ, test.vars)
		_, err := Source{Environ: environ}.Load(t.Context(), NeedCalls)
		if got := fmt.Sprint(err); got != test.want && (err != nil || test.want != "") {
			t.Errorf("%v:\ngot  %s\nwant %s", test.vars, got, test.want)
		}
	}
}
