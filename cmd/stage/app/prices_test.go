package app

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

func TestPricesAreReadFromYAMLAndJSON(t *testing.T) {
	for _, text := range []string{
		"large: {input: 2, cached: 0.5, output: 8}\nanthropic/claude:\n  input: 3\n  output: 15\n",
		`{"large": {"input": 2, "cached": 0.5, "output": 8}, "anthropic/claude": {"input": 3, "output": 15}}`,
	} {
		p, err := parsePrices([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		cached := int64(400)
		for _, test := range []struct {
			provider string
			models   []string
			usage    auditlog.Usage
			want     float64 // below 0: unknown
		}{
			{"openai", []string{"large"}, auditlog.Usage{PromptTokens: 1000, CompletionTokens: 100}, .002 + .0008},
			{"openai", []string{"large"}, auditlog.Usage{PromptTokens: 1000, CompletionTokens: 100, CachedTokens: &cached}, .0012 + .0002 + .0008},
			{"anthropic", []string{"claude"}, auditlog.Usage{PromptTokens: 1000, CachedTokens: &cached}, .003},
			{"openrouter", []string{"anthropic/claude"}, auditlog.Usage{CompletionTokens: 1000}, .015},
			{"openai", []string{"claude"}, auditlog.Usage{}, -1},
			{"openai", []string{"alias", "large"}, auditlog.Usage{PromptTokens: 1e6}, 2},
		} {
			v, ok := p.of(test.provider, test.models...)
			if ok != (test.want >= 0) {
				t.Errorf("%s %v: found %v", test.provider, test.models, ok)
			}
			if ok && math.Abs(v.cost(&test.usage)-test.want) > 1e-12 {
				t.Errorf("%s %v: cost %v, want %v", test.provider, test.models, v.cost(&test.usage), test.want)
			}
		}
	}
}

func TestFaultsOfPricesAreNamed(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "holds no prices"},
		{"{}", "holds no prices"},
		{"m: {input: 1}", "m: output is missing"},
		{"m: {input: -1, output: .inf, cached: .nan}", "m: input is -1: give USD per million tokens, 0 or more\nm: cached is NaN: give USD per million tokens, 0 or more\nm: output is +Inf"},
		{"m: {input: 1, output: 1, outputs: 2}", `unknown field "outputs"`},
		{"m: {input: cheap, output: 1}", "cannot unmarshal"},
		{"m: {input: 1, output: 1}\nm: {input: 2, output: 1}", "already defined"},
		{"- m", "gpt-4.1-mini"},
	} {
		_, err := parsePrices([]byte(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %q", test.text, err, test.want)
		}
	}
}

func FuzzPrices(f *testing.F) {
	f.Add([]byte("m: {input: 1, cached: .5, output: 2}"))
	f.Add([]byte(`{"p/m": {"input": 0, "output": 1e300}}`))
	f.Add([]byte("a: &a {input: 1, output: 1}\nb: *a\nc: null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parsePrices(text)
		if err != nil {
			return
		}
		for model := range p {
			v, _ := p.of("x", model)
			if cost := v.cost(&auditlog.Usage{PromptTokens: 10, CompletionTokens: 10}); !(cost >= 0) {
				t.Errorf("%q costs %v", model, cost)
			}
		}
	})
}

func TestACeilingNeedsThePriceOfEveryModelThatMayBeAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(path, []byte("m: {input: 1, output: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		vars map[string]string
		want string
	}{
		{map[string]string{"STAGE_PRICES_FILE": path, "STAGE_MAX_COST_USD": "1"}, ""},
		{map[string]string{"STAGE_MAX_COST_USD": "1"}, "STAGE_MAX_COST_USD: a ceiling needs prices: set STAGE_PRICES_FILE"},
		{
			map[string]string{"STAGE_PRICES_FILE": path, "STAGE_MAX_COST_USD": "1", "STAGE_FALLBACKS": "mock:other"},
			"STAGE_MAX_COST_USD: the ceiling cannot be kept without a price of other: add mock/other to STAGE_PRICES_FILE",
		},
		{map[string]string{"STAGE_PRICES_FILE": path, "STAGE_FALLBACKS": "mock:other"}, ""},
	} {
		environ := map[string]string{"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x"}
		maps.Copy(environ, test.vars)
		_, err := ConfigSource{Environ: environ}.Load(t.Context(), NeedCalls)
		if got := errorText(err); got != test.want {
			t.Errorf("%v:\ngot  %s\nwant %s", test.vars, got, test.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
