package preview_test

import (
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/preview"
)

func TestDryRunCallsNobodyAndChangesNoFile(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a call to %s", r.URL)
	}))
	defer provider.Close()
	dir := t.TempDir()
	t.Chdir(dir)
	files := map[string]string{
		"rows.jsonl":  "{\"n\":1}\n\n{\"n\":2}\nnonsense\n{\"n\":3}\n{\"n\":4}\n",
		"prices.yaml": "big: {input: 3, output: 15}\nmock/small: {input: 0.4, output: 1.6}\n",
		"schema.json": `{"type": "object"}`,
		"out.jsonl":   "results of last week\n",
		"fan.jsonl":   `{"n":7,"of":["a","b","c","d"]}` + "\n" + `{"n":8,"of":[]}` + "\n" + `{"n":9}` + "\n" + `{"n":9,"of":[{"x":1},{}]}` + "\n",
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	prompt := strings.Repeat("x", 3999) // and a digit
	tests := []struct {
		name    string
		rows    int64
		fails   bool
		latency time.Duration
		env     map[string]string
		wants   []string
	}{
		{"plain", 0, true, 0, nil, []string{
			"--- line 1\n" + prompt + "1\n--- line 3\n" + prompt + "2\n--- line 5\n" + prompt + "3\n---\n5 rows, 1 of them would fail before any call, about 4000 prompt tokens; nothing was called or stored\n",
		}},
		{"one row", 1, false, 0, map[string]string{"STAGE_TEMPLATE": "\x1b[31m{{ row.n }}"}, []string{"--- line 1\n\uFFFD[31m1\n---\n1 row, 0 of them"}},
		{"limit", 2, false, 0, nil, []string{"--- line 3\n", "---\n2 rows, 0 of them would fail before any call, about 2000 prompt tokens"}},
		{"system prompt and schema", 1, false, 0, map[string]string{
			"STAGE_SYSTEM_PROMPT": strings.Repeat("s", 3982), "STAGE_RESPONSE_SCHEMA_FILE": "schema.json", // 18 bytes without the space
		}, []string{"--- system prompt\nsss", "about 1999 prompt tokens"}},
		{"cost", 0, true, 0, map[string]string{"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "small"}, []string{
			"stored\nabout 0.0016 USD for the prompts, and 0.00064 USD for every 100 tokens of reply to each row\n",
		}},
		{"cost of bounded replies", 0, true, 0, map[string]string{
			"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "big", "STAGE_LLM_MAX_TOKENS": "1000000", "STAGE_MAX_COST_USD": "2.5",
		}, []string{"about 0.012 USD for the prompts, at most 60 USD for replies of STAGE_LLM_MAX_TOKENS each; STAGE_MAX_COST_USD is 2.5\n"}},
		{"time", 0, true, 1200 * time.Millisecond, nil, []string{
			"with calls of 1.2s: 4.8 s one call at a time, about 1.2 s here (16 slots), or longer if the provider allows less than 200 calls a minute\n",
		}},
		{"time by limits", 0, true, time.Minute, map[string]string{"STAGE_LLM_RPM": "2"}, []string{"4 min 0 s one call at a time, about 2 min 0 s here (STAGE_LLM_RPM of 2)\n"}},
		{"time by tokens", 0, true, time.Second, map[string]string{"STAGE_LLM_TPM": "600", "STAGE_LLM_MAX_TOKENS": "50"}, []string{
			"about 7 min 0 s here (STAGE_LLM_TPM of 600, with replies of STAGE_LLM_MAX_TOKENS)",
		}},
		{"time by calls in flight", 0, true, time.Hour, map[string]string{"STAGE_LLM_MAX_CONCURRENCY": "mock=2"}, []string{
			"4 h 0 min one call at a time, about 2 h 0 min here (STAGE_LLM_MAX_CONCURRENCY of 2)",
		}},
		{"no model", 0, true, 0, map[string]string{"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_PROVIDER": "openai"}, []string{
			"the cost is unknown: set STAGE_LLM_MODEL\n",
		}},
		{"elements", 0, true, 0, map[string]string{"STAGE_FOREACH": "of", "STAGE_FOREACH_MAX": "4", "STAGE_TEMPLATE": strings.Repeat("x", 3996) + "{{ row.n }}{{ loop.index }} {{ item }}"}, []string{
			"--- line 1, element 0 of 4\n" + strings.Repeat("x", 3996) + "71 a\n--- line 1, element 1 of 4\n", "72 b\n--- line 1, element 2 of 4\n",
			"73 c\n--- line 1: 1 more element\n--- line 2: no elements, no call\n--- line 4, element 0 of 2\n",
			"---\n4 rows, 1 of them would fail, 6 calls for elements, about 6002 prompt tokens; nothing",
		}},
		{"elements that fail", 0, true, 0, map[string]string{"STAGE_FOREACH": "of", "STAGE_TEMPLATE": "{{ item.x }}"}, []string{
			"--- line 2: no elements, no call\n---\n4 rows, 3 of them would fail, 0 calls for elements",
		}},
		{"elements that fail and are kept", 0, true, 0, map[string]string{"STAGE_FOREACH": "of", "STAGE_FOREACH_ERRORS": "keep", "STAGE_TEMPLATE": "{{ item.x }}"}, []string{
			"---\n4 rows, 1 of them would fail, 2 would have errors in the place of elements, 1 call for elements",
		}},
		{"too many elements", 1, true, 0, map[string]string{"STAGE_FOREACH": "of", "STAGE_FOREACH_MAX": "3", "STAGE_TEMPLATE": "{{ item }}"}, []string{
			"---\n1 row, 1 of them would fail, 0 calls for elements",
		}},
		{"cost of elements", 2, false, 0, map[string]string{
			"STAGE_FOREACH": "of", "STAGE_TEMPLATE": "{{ item }}", "STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "big", "STAGE_LLM_MAX_TOKENS": "1000000",
		}, []string{"at most 60 USD for replies of STAGE_LLM_MAX_TOKENS each\n"}},
		{"no price", 0, true, 0, map[string]string{"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "other"}, []string{
			"the cost is unknown: STAGE_PRICES_FILE has no price for mock/other\n",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			variables := map[string]string{
				"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_BASE_URL": provider.URL, "STAGE_TEMPLATE": strings.Repeat("x", 3999) + "{{ row.n }}",
			}
			maps.Copy(variables, tt.env)
			cfg, err := config.Source{Environ: variables}.Load(t.Context(), config.NeedPrompt)
			if err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			in := preview.Input{Name: "rows.jsonl", Rows: tt.rows}
			if cfg.FansOut() {
				in.Name = "fan.jsonl"
			}
			if err := preview.DryRun(t.Context(), cfg, in, tt.latency, &out, &errs); (err != nil) != tt.fails {
				t.Fatalf("got %v, want one: %t: %s", err, tt.fails, &errs)
			}
			for _, want := range tt.wants {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output lacks %.200q:\n%s", want, &out)
				}
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != len(files) {
		t.Errorf("it left %v, %v", left, err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}
