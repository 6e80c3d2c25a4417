package config

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var text bytes.Buffer
	must(t, WriteSchema(&text))
	doc, err := jsonschema.UnmarshalJSON(&text)
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	must(t, compiler.AddResource("config.json", doc))
	schema, err := compiler.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestTheSchemaTakesEachDefault holds patterns and bounds to what the loader takes, and to no less.
func TestTheSchemaTakesEachDefault(t *testing.T) {
	schema := compiledSchema(t)
	for _, f := range Fields() {
		for _, value := range []string{f.Fallback, ""} {
			if err := schema.Validate(map[string]any{f.Variable: value}); err != nil {
				t.Errorf("%s=%q: %v", f.Variable, value, err)
			}
		}
	}
}

// TestTheSchemaAgreesWithTheLoader compares the two on values of each kind, as text.
func TestTheSchemaAgreesWithTheLoader(t *testing.T) {
	schema := compiledSchema(t)
	for _, tt := range []struct {
		variable, value string
		good            bool
	}{
		{"STAGE_POOL_SIZE", "32", true},
		{"STAGE_POOL_SIZE", "many", false},
		{"STAGE_POOL_SIZE", "3.5", false},
		{"STAGE_BACKOFF_MULTIPLIER", "1.5", true},
		{"STAGE_BACKOFF_MULTIPLIER", "x2", false},
		{"STAGE_RECOVERY_STEP_MS", "0.5", true},
		{"STAGE_RECOVERY_STEP_MS", "50ms", false},
		{"STAGE_LLM_TIMEOUT", "1m30s", true},
		{"STAGE_LLM_TIMEOUT", "1.5m", true},
		{"STAGE_LLM_TIMEOUT", "90", false},
		{"STAGE_LLM_TIMEOUT", "-1s", false},
		{"STAGE_DATA_SYNC", "always", true},
		{"STAGE_DATA_SYNC", "1s", true},
		{"STAGE_DATA_SYNC", "never", false},
		{"STAGE_WINDOW_BYTES", "64MiB", true},
		{"STAGE_WINDOW_BYTES", "64 MiB", true},
		{"STAGE_WINDOW_BYTES", "64MB", false},
		{"STAGE_JOURNAL", "false", true},
		{"STAGE_JOURNAL", "no", false},
		{"STAGE_THROTTLE", "classic", true},
		{"STAGE_THROTTLE", "none", false},
		{"STAGE_ORDER", "key", true},
		{"STAGE_ORDER", "keys", false},
		{"STAGE_ORDER_KEY", "subject.12", true},
		{"STAGE_ORDER_KEY", "subject.0", false},
		{"STAGE_ORDER_KEY", "header.X-Customer", true},
		{"STAGE_ORDER_KEY", "header.a b", false},
		{"STAGE_ORDER_KEY", "field.größe in cm", true},
		{"STAGE_ORDER_KEY", "field.", false},
		{"STAGE_ORDER_KEY", "customer", false},
		{"STAGE_BUDGET", "team-7", true},
		{"STAGE_BUDGET", "team.7", false},
		{"STAGE_BUDGET_WEIGHT", "0.5", true},
		{"STAGE_FALLBACKS", "mock:small, mock:big:v2", true},
		{"STAGE_FALLBACKS", "mock", false},
		{"STAGE_LLM_MAX_CONCURRENCY", "openai=8,anthropic=4", true},
		{"STAGE_LLM_MAX_CONCURRENCY", "openai", false},
		{"STAGE_LLM_BASE_URL", "http://localhost:11434/v1", true},
		{"STAGE_LLM_BASE_URL", "localhost:11434", false},
		{"STAGE_LLM_EXTRA_BODY", `{"top_p":0.9}`, true},
		{"STAGE_HTTP_HOSTS", "stage.example.com, *.Example.org,192.0.2.1,[::1]", true},
		{"STAGE_HTTP_HOSTS", "*", true},
		{"STAGE_HTTP_HOSTS", "https://stage.example.com", false},
		{"STAGE_POOLSIZE", "32", false},
	} {
		bySchema := schema.Validate(map[string]any{tt.variable: tt.value}) == nil
		_, err := Source{Environ: map[string]string{tt.variable: tt.value}}.Load(t.Context(), NeedNothing)
		if bySchema != tt.good || (err == nil) != tt.good {
			t.Errorf("%s=%s: good for the schema %t, for the loader %t (%v), want %t", tt.variable, tt.value, bySchema, err == nil, err, tt.good)
		}
	}
}

// TestTheSchemaBoundsNumbersThatAreNotText is for YAML, where 32 without quotes is a number.
func TestTheSchemaBoundsNumbersThatAreNotText(t *testing.T) {
	schema := compiledSchema(t)
	for _, tt := range []struct {
		variable string
		value    string // as JSON
		good     bool
	}{
		{"STAGE_POOL_SIZE", `32`, true},
		{"STAGE_POOL_SIZE", `0`, false},
		{"STAGE_POOL_SIZE", `1.5`, false},
		{"STAGE_POOL_SIZE", `10001`, false},
		{"STAGE_MAX_DISPATCH_DELAY_MS", `0`, false},
		{"STAGE_MAX_DISPATCH_DELAY_MS", `0.5`, true},
		{"STAGE_BACKOFF_MULTIPLIER", `1`, false},
		{"STAGE_MAX_COST_USD", `-1`, false},
		{"STAGE_BUDGET_WEIGHT", `0.001`, false},
		{"STAGE_BUDGET_WEIGHT", `100`, true},
		{"STAGE_JOURNAL", `false`, true},
		{"STAGE_LLM_MAX_REPLY_BYTES", `1023`, false},
		{"STAGE_LLM_MODEL", `4`, false},
	} {
		var value any
		must(t, json.Unmarshal([]byte(tt.value), &value))
		if good := schema.Validate(map[string]any{tt.variable: value}) == nil; good != tt.good {
			t.Errorf("%s: %s: good %t, want %t", tt.variable, tt.value, good, tt.good)
		}
	}
}
