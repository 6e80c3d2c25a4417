package cli

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	prompt := strings.Repeat("x", 3999) // and a digit
	tests := []struct {
		name  string
		args  []string
		env   map[string]string
		code  int
		wants []string
	}{
		{"plain", nil, nil, exitFailed, []string{
			"--- line 1\n" + prompt + "1\n--- line 3\n" + prompt + "2\n--- line 5\n" + prompt + "3\n---\n5 rows, 1 of them would fail before any call, about 4000 prompt tokens; nothing was called or stored\n",
		}},
		{"limit", []string{"--limit", "2"}, nil, exitDone, []string{"--- line 3\n", "---\n2 rows, 0 of them would fail before any call, about 2000 prompt tokens"}},
		{"system prompt and schema", []string{"--limit", "1"}, map[string]string{
			"STAGE_SYSTEM_PROMPT": strings.Repeat("s", 3982), "STAGE_RESPONSE_SCHEMA_FILE": "schema.json", // 18 bytes without the space
		}, exitDone, []string{"--- system prompt\nsss", "about 1999 prompt tokens"}},
		{"cost", nil, map[string]string{"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "small"}, exitFailed, []string{
			"stored\nabout 0.0016 USD for the prompts, and 0.00064 USD for every 100 tokens of reply to each row\n",
		}},
		{"cost of bounded replies", nil, map[string]string{
			"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "big", "STAGE_LLM_MAX_TOKENS": "1000000", "STAGE_MAX_COST_USD": "2.5",
		}, exitFailed, []string{"about 0.012 USD for the prompts, at most 60 USD for replies of STAGE_LLM_MAX_TOKENS each; STAGE_MAX_COST_USD is 2.5\n"}},
		{"no model", nil, map[string]string{"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_PROVIDER": "openai"}, exitFailed, []string{
			"the cost is unknown: set STAGE_LLM_MODEL\n",
		}},
		{"no price", nil, map[string]string{"STAGE_PRICES_FILE": "prices.yaml", "STAGE_LLM_MODEL": "other"}, exitFailed, []string{
			"the cost is unknown: STAGE_PRICES_FILE has no price for mock/other\n",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			variables := map[string]string{
				"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_BASE_URL": provider.URL, "STAGE_TEMPLATE": strings.Repeat("x", 3999) + "{{ row.n }}",
			}
			maps.Copy(variables, tt.env)
			var out, errs bytes.Buffer
			env := &Env{
				Args:    append([]string{"process", "rows.jsonl", "-o", "out.jsonl", "--dry-run"}, tt.args...),
				Environ: variables, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
			}
			if code := Main(t.Context(), env); code != tt.code {
				t.Fatalf("exit code %d, want %d: %s", code, tt.code, &errs)
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

func TestABadExtraBodyIsFoundByEveryCommandBeforeTheFirstRow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a command that accepts the setting must not go on for ever
	commands := [][]string{
		{"config", "--check"},
		{"config"},
		{"run"},
		{"process", "-"},
		{"process", "--dry-run", "-"},
		{"load", "-"},
		{"results"},
		{"tail"},
		{"verify"},
		{"redrive"},
		{"batch", "-"},
	}
	for extra, want := range map[string]string{
		`{"stream": true}`:           `STAGE_LLM_EXTRA_BODY: "stream" is not supported; remove it`,
		`{"background": true}`:       `STAGE_LLM_EXTRA_BODY: "background" has no reply to wait for; remove it`,
		`{"model": "gpt-5"}`:         `STAGE_LLM_EXTRA_BODY: "model" may not be set here: use STAGE_LLM_MODEL, or the header Stage-Model for one row`,
		`{"messages": []}`:           `STAGE_LLM_EXTRA_BODY: "messages" may not be set here: use STAGE_TEMPLATE`,
		`{"prompt": {"id": "p"}}`:    `STAGE_LLM_EXTRA_BODY: "prompt" may not be set here: use STAGE_TEMPLATE`,
		`{"conversation": "c"}`:      `STAGE_LLM_EXTRA_BODY: "conversation" puts other text into every prompt; remove it`,
		`{"instructions": "Answer"}`: `STAGE_LLM_EXTRA_BODY: "instructions" may not be set here: use STAGE_SYSTEM_PROMPT`,
	} {
		for _, args := range commands {
			var errs bytes.Buffer
			env := &Env{Args: args, Stdin: strings.NewReader(""), Stdout: &errs, Stderr: &errs, Environ: map[string]string{
				"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE": "x", "STAGE_LLM_EXTRA_BODY": extra, "STAGE_DATA_DIR": t.TempDir(),
			}}
			if code := Main(ctx, env); code != exitUsage || !strings.Contains(errs.String(), want) {
				t.Errorf("%v: exit code %d, want %d: %s", args, code, exitUsage, &errs)
			}
		}
	}
}
