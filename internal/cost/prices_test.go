package cost

import (
	"math"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"pgregory.net/rapid"
)

func TestPricesAreReadFromYAMLAndJSON(t *testing.T) {
	for _, text := range []string{
		"large: {input: 2, cached: 0.5, output: 8}\nanthropic/claude:\n  input: 3\n  output: 15\n",
		"\ufefflarge: {input: 2, cached: 0.5, output: 8}\nanthropic/claude: {input: 3, output: 15}\n",
		"\ufeff" + `{"large": {"input": 2, "cached": 0.5, "output": 8}, "anthropic/claude": {"input": 3, "output": 15}}`,
		"# of 2026\n---\nlarge: {input: 2, cached: 0.5, output: 8}\nanthropic/claude: {input: 3, output: 15}\n---\n",
		`{"large": {"input": 2, "cached": 0.5, "output": 8}, "anthropic/claude": {"input": 3, "output": 15}}`,
	} {
		p, err := parsePrices([]byte(text), false)
		if err != nil {
			t.Fatal(err)
		}
		p["vertex_ai/claude-v@1"] = Price{Input: new(4.0), Output: new(8.0)}
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
			{"bedrock", []string{"arn:aws:bedrock:eu-central-1:1:inference-profile/large"}, auditlog.Usage{PromptTokens: 1e6}, 2},
			{"bedrock", []string{"inference-profile/large"}, auditlog.Usage{PromptTokens: 1e6}, -1},
			{"vertex", []string{"publishers/google/models/large"}, auditlog.Usage{PromptTokens: 1e6}, 2},
			{"vertex", []string{"anthropic/claude-v@1", "large"}, auditlog.Usage{PromptTokens: 1e6}, 4},
			{"openai", []string{"claude-v@1"}, auditlog.Usage{}, -1},
			{"openai", []string{"claude"}, auditlog.Usage{}, -1},
			{"openai", []string{"alias", "large"}, auditlog.Usage{PromptTokens: 1e6}, 2},
		} {
			v, ok := p.Lookup(test.provider, test.models...)
			if ok != (test.want >= 0) {
				t.Errorf("%s %v: found %v", test.provider, test.models, ok)
			}
			if ok && math.Abs(v.Cost(&test.usage)-test.want) > 1e-12 {
				t.Errorf("%s %v: cost %v, want %v", test.provider, test.models, v.Cost(&test.usage), test.want)
			}
		}
	}
}

// TestEachKindOfTokenHasItsPrice: the parts are taken out of prompt and completion, so no token is paid for twice.
// Anthropic charges 1.25 times the input for writes to a cache of 5 minutes and twice for one of an hour (its pricing
// page), OpenAI 1.25 times from GPT-5.6 on: missing prices are assumed so.
func TestEachKindOfTokenHasItsPrice(t *testing.T) {
	usage := auditlog.Usage{
		PromptTokens: 1000, CachedTokens: new(int64(400)), CacheWriteTokens: new(int64(300)), CacheWrite1hTokens: new(int64(100)),
		CompletionTokens: 50, ReasoningTokens: new(int64(30)),
	}
	for _, test := range []struct {
		name, price string
		usage       auditlog.Usage
		want        float64 // USD per million
	}{
		{"all prices", "{input: 4, cached: 1, cache_write: 5, cache_write_1h: 8, output: 20, reasoning: 10}", usage, 300*4 + 400*1 + 200*5 + 100*8 + 20*20 + 30*10},
		{"what is assumed", "{input: 4, output: 20}", usage, 300*4 + 400*4 + 200*5 + 100*8 + 50*20},
		{"writes for nothing", "{input: 4, cache_write: 4, cache_write_1h: 0, output: 0}", usage, 900 * 4},
		{
			"parts above the whole", "{input: 4, cached: 1, output: 20, reasoning: 10}",
			auditlog.Usage{PromptTokens: 10, CachedTokens: new(int64(9)), CacheWriteTokens: new(int64(8)), CompletionTokens: 5, ReasoningTokens: new(int64(7))},
			8*5 + 2*1 + 5*10,
		},
		{
			"negative parts", "{input: 4, output: 20}",
			auditlog.Usage{PromptTokens: 10, CachedTokens: new(int64(-9)), CacheWriteTokens: new(int64(-1)), CompletionTokens: -5},
			40,
		},
		{"the hour alone", "{input: 4, output: 20}", auditlog.Usage{PromptTokens: 10, CacheWrite1hTokens: new(int64(10))}, 80},
	} {
		p, err := parsePrices([]byte("m: "+test.price), false)
		if err != nil {
			t.Fatal(err)
		}
		v, _ := p.Lookup("p", "m")
		if got := v.Cost(&test.usage) * 1e6; math.Abs(got-test.want) > 1e-6 {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestCostIsThatOfEveryTokenOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int64Range(0, 1e9)
		part := rapid.Ptr(count, true)
		u := &auditlog.Usage{
			PromptTokens: count.Draw(t, "prompt"), CompletionTokens: count.Draw(t, "completion"),
			CachedTokens: part.Draw(t, "cached"), CacheWriteTokens: part.Draw(t, "written"), CacheWrite1hTokens: part.Draw(t, "written for an hour"),
			ReasoningTokens: part.Draw(t, "reasoning"),
		}
		usd := rapid.Float64Range(0, 1e4)
		p := usd.Draw(t, "price of all")
		same := Price{Input: &p, Cached: &p, CacheWrite: &p, CacheWrite1h: &p, Output: &p, Reasoning: &p}
		want := p * float64(u.PromptTokens+u.CompletionTokens) / 1e6
		if got := same.Cost(u); math.Abs(got-want) > 1e-9*(1+want) {
			t.Fatalf("%+v at %v: got %v, want %v", u, p, got, want)
		}
		if p > 0 { // what is assumed of prices that are missing must not be too low
			if got := (&Price{Input: &p, Output: &p}).Cost(u); got < want*(1-1e-9) {
				t.Fatalf("%+v at %v: got %v, want at least %v", u, p, got, want)
			}
		}
		each := Price{Input: new(usd.Draw(t, "i")), Cached: new(usd.Draw(t, "c")), CacheWrite: new(usd.Draw(t, "w")), Output: new(usd.Draw(t, "o"))}
		if got := each.Cost(u); !(got >= 0) {
			t.Fatalf("%+v: cost %v", u, got)
		}
	})
}

func TestProblemsOfPricesAreNamed(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "holds no prices"},
		{"{}", "holds no prices"},
		{"m: {input: 1}", "m: output is missing"},
		{"m: {input: -1, output: .inf, cached: .nan}", "m: input is -1: give USD per million tokens, from 0 to 1e9\nm: cached is NaN: give USD per million tokens, from 0 to 1e9\nm: output is +Inf"},
		{"m: {input: 1.1e9, output: 1, batch_input: 1e300, batch_output: 1}", "m: input is 1.1e+09: give USD per million tokens, from 0 to 1e9\nm: batch_input is 1e+300"},
		{"m: {input: 1, output: 1, outputs: 2}", `line 1, column 26: unknown field "outputs" of m`},
		{"m: {input: cheap, output: 1}", "line 1, column 5: input of m is not a number: write it as gpt-4.1-mini"},
		{"m: {input: 1, output: 1}\nm: {input: 2, output: 1}", `line 2, column 1: mapping key "m" already defined at line 1, column 1`},
		{"m: {input: 1, output: 1, cache_write: -1, reasoning: -2}", "m: cache_write is -1: give USD per million tokens, from 0 to 1e9\nm: reasoning is -2"},
		{"m: {input: 1, output: 1, batch_cached: 1}", "m: batch_input is missing\nm: batch_output is missing"},
		{"- m", "gpt-4.1-mini"},
		{"m: {input: 1, output: 1}\n---\nm2: {input: 1, output: 1}\n", "line 3, column 1: a second document"},
	} {
		_, err := parsePrices([]byte(test.text), false)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %q", test.text, err, test.want)
		}
	}
}

func FuzzPrices(f *testing.F) {
	f.Add([]byte("m: {input: 1, cached: .5, output: 2}"))
	f.Add([]byte(`{"p/m": {"input": 0, "output": 1e9}}`))
	f.Add([]byte("a: &a {input: 1, output: 1}\nb: *a\nc: null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parsePrices(text, false)
		if err != nil {
			return
		}
		for model := range p {
			v, _ := p.Lookup("x", model)
			all := int64(math.MaxInt64)
			if cost := v.Cost(&auditlog.Usage{PromptTokens: all, CompletionTokens: all, CacheWrite1hTokens: &all}); !(cost >= 0 && cost < 1e23) {
				t.Errorf("%q costs %v", model, cost)
			}
		}
	})
}
