// Package schemas_test checks the JSON Schemas that lie beside it.
package schemas_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compile(tb testing.TB, path string) *jsonschema.Schema {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		tb.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(path, doc); err != nil {
		tb.Fatal(err)
	}
	s, err := c.Compile(path) // which holds it against the meta-schema
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestEachSchemaIsDraft202012(t *testing.T) {
	paths, err := filepath.Glob("*.schema.json")
	if err != nil || len(paths) < 2 {
		t.Fatalf("found %q, %v", paths, err)
	}
	for _, path := range paths {
		if s := compile(t, path); s.DraftVersion != 2020 {
			t.Errorf("%s: draft %d, want 2020", path, s.DraftVersion)
		}
	}
}

const success = `{"id":7,"llm_response":"good",` +
	`"llm_response_usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"cost":0.0004},` +
	`"llm_response_template_hash":"HASH","llm_response_variables_hash":"HASH","llm_response_template_source":null,` +
	`"llm_response_lookup_hash":null,"llm_response_lookup_source":null,"llm_response_model":"gpt-4.1-mini"}`

func failure(members string) string {
	return `{"id":7,"llm_response_error":{` + members + `,"error":"what happened","errors":[` +
		`{"attempt":1,"provider":"openai","class":"permanent","status_code":400,"error":"openai: 400"}]}}`
}

func TestResults(t *testing.T) {
	s := compile(t, "result.schema.json")
	tests := []struct {
		name, result string
		valid        bool
	}{
		{"success", success, true},
		{"success without reported usage", strings.Replace(success, `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"cost":0.0004}`, "null", 1), true},
		{"success with a value", strings.Replace(success, `"good"`, `{"stars":4}`, 1), true},
		{"success without its answer", strings.Replace(success, `"llm_response":"good",`, "", 1), false},
		{"success without its model", strings.Replace(success, `"llm_response_model"`, `"model"`, 1), false},
		{"hash of a lookup", strings.Replace(success, `lookup_hash":null`, `lookup_hash":"HASH"`, 1), true},
		{"replies to elements", strings.NewReplacer(`"good"`, `["good",{"error":{"reason":"refused","error":"no"}}]`, `variables_hash":"HASH"`, `variables_hash":["HASH","HASH"]`).Replace(success), true},
		{"replies to no elements", strings.NewReplacer(`"good"`, `[]`, `variables_hash":"HASH"`, `variables_hash":[]`).Replace(success), true},
		{"no hash of an element", strings.Replace(success, `variables_hash":"HASH"`, `variables_hash":["HASH",""]`, 1), false},
		{"no hash", strings.Replace(success, `lookup_hash":null`, `lookup_hash":""`, 1), false},
		{"half a usage", strings.Replace(success, `"total_tokens":15,`, "", 1), false},
		{"unknown cost is left out", strings.Replace(success, `"cost":0.0004`, `"cost":null`, 1), false},

		{"invalid row", failure(`"reason":"invalid_row","body_preview":"hello"`), true},
		{"invalid row without preview", failure(`"reason":"invalid_row"`), false},
		{"template", failure(`"reason":"template_rendering_failed","template_hash":"HASH","template_source":"t.j2"`), true},
		{"template without hash", failure(`"reason":"template_rendering_failed","template_source":null`), false},
		{"call", failure(`"reason":"api_call_failed","status_code":400,"provider_code":null`), true},
		{"call without code", failure(`"reason":"api_call_failed","status_code":400`), false},
		{"no JSON", failure(`"reason":"invalid_json_response","content_type":"text/html","body_preview":"<html>"`), true},
		{"no JSON without type", failure(`"reason":"invalid_json_response","body_preview":"<html>"`), false},
		{"no choices", failure(`"reason":"empty_choices","response":{"choices":[]}`), true},
		{"no choices without response", failure(`"reason":"empty_choices"`), false},
		{"malformed", failure(`"reason":"malformed_response","response_keys":["id"]`), true},
		{"malformed without keys", failure(`"reason":"malformed_response"`), false},
		{"truncated", failure(`"reason":"truncated","partial":"The"`), true},
		{"truncated with finish reason", failure(`"reason":"truncated","partial":"The","finish_reason":"pause_turn"`), true},
		{"truncated without finish reason", failure(`"reason":"truncated","partial":"The","finish_reason":null`), true},
		{"truncated with odd finish reason", failure(`"reason":"truncated","partial":"The","finish_reason":7`), false},
		{"truncated without text", failure(`"reason":"truncated"`), false},
		{"elements", failure(`"reason":"foreach_failed","failed":1,"total":3,"items":[{"index":2,"reason":"refused","error":"no"}]`), true},
		{"elements without their number", failure(`"reason":"foreach_failed","failed":1,"items":[]`), false},
		{"an element without a reason", failure(`"reason":"foreach_failed","failed":1,"total":3,"items":[{"index":2,"error":"no"}]`), false},
		{"an element of an unknown reason", failure(`"reason":"foreach_failed","failed":1,"total":3,"items":[{"index":2,"reason":"other","error":"no"}]`), false},
		{"time-out", failure(`"reason":"row_timeout"`), true},
		{"unknown reason", failure(`"reason":"bad_luck"`), false},
		{"errors missing", `{"llm_response_error":{"reason":"refused","error":"no"}}`, false},
		{"no object", `["row"]`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			result := strings.ReplaceAll(tt.result, "HASH", fmt.Sprintf("%064x", 11))
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(result))
			if err != nil {
				t.Fatalf("%v in %s", err, result)
			}
			if err := s.Validate(doc); (err == nil) != tt.valid {
				t.Errorf("%s: valid %v, want %v: %v", result, err == nil, tt.valid, err)
			}
		})
	}
}

// The schema describes what the stage writes, not what somebody once had in mind.
func TestResultsOfTheStage(t *testing.T) {
	s := compile(t, "result.schema.json")
	in, err := row.Parse([]byte(`{"id": 7, "llm_response_error": "of an earlier run"}`))
	if err != nil {
		t.Fatal(err)
	}
	bare, err := row.NewFormat("llm_response", row.Provenance{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = row.Parse([]byte("hello"))
	invalid, ok := errors.AsType[*llm.Error](err)
	if !ok {
		t.Fatalf("got %v, want an *llm.Error", err)
	}
	attempts := []auditlog.AttemptError{{Attempt: 1, Provider: "openai", Class: "permanent", Error: "reset"}}
	results := map[string][]byte{
		"nothing reported": bare.AppendSuccess(nil, in, &row.Answer{Text: "good"}),
		"no part":          bare.AppendSuccess(nil, in, &row.Answer{Text: "good", Keep: 1<<len(llm.KeepNames()) - 1}),
		"parts": bare.AppendSuccess(nil, in, &row.Answer{
			Keep: 1<<len(llm.KeepNames()) - 1,
			Kept: (&llm.Reply{ID: "1", FinishReason: "stop", Kept: &llm.Kept{
				Reasoning: "why", ToolCalls: []llm.ToolCall{{Name: "f", Arguments: json.RawMessage("{}")}}, Citations: []llm.Citation{{URL: "https://host"}},
			}}).Values(1<<len(llm.KeepNames()) - 1),
		}),
		"all reported": bare.AppendSuccess(nil, in, &row.Answer{
			Value: []byte(`{"stars":4}`), VariablesHash: strings.Repeat("0a", 32), Model: "m",
			Usage: &llm.Usage{PromptTokens: 1, TotalTokens: 1, CachedTokens: new(int64(1)), CacheWriteTokens: new(int64(1)), CacheWrite1hTokens: new(int64), ReasoningTokens: new(int64), Cost: new(0.5)},
		}),
		"invalid row":      bare.AppendError(nil, nil, invalid, nil, 0),
		"result too large": bare.AppendError(nil, in, row.ResultTooLarge(9, 8, ""), attempts, 0),
		"row too large":    bare.AppendError(nil, nil, row.TooLarge(9, 8, []byte("{"), true), nil, 0),
		"no room":          bare.AppendError(nil, in, row.ResultTooLarge(9, 8, ""), attempts, 1),
	}
	for name, result := range results {
		t.Run(name, func(t *testing.T) {
			doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(result))
			if err != nil {
				t.Fatalf("%v in %s", err, result)
			}
			if err := s.Validate(doc); err != nil {
				t.Errorf("%v in %s", err, result)
			}
		})
	}
}
