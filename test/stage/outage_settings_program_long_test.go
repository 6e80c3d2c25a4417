//go:build long

package stage_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// unknownParameter is a provider's answer to every request with a parameter that it does not accept.
var unknownParameter = llmtest.Step{
	Status: 400,
	Body:   `{"error":{"type":"invalid_request_error","code":"unknown_parameter","message":"Unrecognized request argument supplied: foo"}}`,
}

// untilFixed answers all calls with a step until the cause is fixed.
func untilFixed(step llmtest.Step) (cfg llmtest.Config, fixed *atomic.Bool) {
	fixed = &atomic.Bool{}
	return llmtest.Config{Script: func(llmtest.Call) *llmtest.Step {
		if fixed.Load() {
			return nil
		}
		return &step
	}}, fixed
}

func TestWrongSettingsEndAJobBeforeARowFails(t *testing.T) {
	t.Parallel()
	login := llmtest.Step{Header: map[string]string{"Content-Type": "text/html"}, Body: "<!DOCTYPE html><html><head><title>Sign in</title></head></html>"}
	for _, tt := range []struct {
		name string
		step llmtest.Step
		says []string
	}{
		{"a parameter that the provider does not know", unknownParameter, []string{"400", "unknown_parameter", "Unrecognized request argument supplied: foo"}},
		{"a sign-in page", login, []string{"Sign in"}},
		{"an address that does not serve the API", llmtest.Step{Status: 405, Body: "method not allowed"}, []string{"405", "method not allowed"}},
		{"replies in another format", llmtest.Step{Body: `{"status":"ok"}`}, []string{"status"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, fixed := untilFixed(tt.step)
			o := newOut(t, cfg, nil)
			p := o.process()
			p.ends(3)
			log := p.stderr.String()
			for _, want := range append(tt.says, "messages") { // the members of the request
				if !strings.Contains(log, want) {
					t.Errorf("it does not say %q: %s", want, log)
				}
			}
			if calls := int(o.llm.Stats().Received); calls > o.pool+5 {
				t.Errorf("%d calls, want at most %d", calls, o.pool+5)
			}
			if text, err := os.ReadFile(o.results); err != nil || len(text) > 0 {
				t.Errorf("results of rows that should be held: %v: %.300s", err, text)
			}
			o.verify()
			fixed.Store(true)
			o.complete(o.process())
		})
	}
}

func TestWrongSettingsFailRowsIfConfigured(t *testing.T) {
	t.Parallel()
	cfg, _ := untilFixed(unknownParameter)
	o := newOut(t, cfg, vars{"STAGE_ON_FATAL": "fail"})
	p := o.process()
	p.ends(0)
	results := stored(t, filepath.Join(o.dir, "stage-data", "job")).results(0)
	for i, r := range results {
		if r.Row != uint64(i+1) || r.Fault == nil || r.Fault.Reason != "api_call_failed" || r.Fault.Raw["status_code"] != 400.0 {
			t.Fatalf("result %d is of row %d: %s", i, r.Row, r.Body)
		}
	}
	if calls := int(o.llm.Stats().Received); len(results) != o.rows || calls != o.rows {
		t.Errorf("%d results and %d calls for %d rows", len(results), calls, o.rows)
	}
}
