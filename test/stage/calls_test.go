package stage_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// oneRow runs a stage on one row until it is answered, and returns its result and the audit.
func oneRow(t *testing.T, behaviour llmtest.Config, changes vars, then func(s *site, a *audit)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 1, behaviour)
		r := s.start(changes)
		s.await(1)
		r.stop()
		a := s.verify()
		then(s, &a)
	})
}

func TestTransientErrorsAreBoundedAndReportedInFull(t *testing.T) {
	steps := []llmtest.Step{
		{Status: 500, Body: `{"error":{"message":"it broke","type":"server_error"}}`},
		{Status: 502, Body: "<html>Bad Gateway</html>", Header: map[string]string{"Content-Type": "text/html"}},
		{Trouble: llmtest.Reset},
		{Trouble: llmtest.Cut, Body: says("half of this", "stop")},
		{Trouble: llmtest.Stall},
		{Trouble: llmtest.Hang},
		{Status: 408},
	}
	// The connection that was reset before a byte of the reply is not the row's fault: it does not count.
	oneRow(t, llmtest.Config{Script: llmtest.Steps(steps...)}, vars{"STAGE_RETRY_MAX_ATTEMPTS": "6", "STAGE_LLM_TIMEOUT": "20s"}, func(s *site, a *audit) {
		f := s.failed()
		if f.Reason != "api_call_failed" || f.Raw["status_code"] != 408.0 {
			t.Errorf("the last error decides: %+v", f.Raw)
		}
		var got []string
		for i, e := range f.Errors {
			if e.Attempt != i+1 || e.Provider != "openai" || e.Error == "" {
				t.Errorf("error %d: %+v", i, e)
			}
			got = append(got, e.Class+" "+strconv.Itoa(e.StatusCode))
		}
		// A reply that was cut off had begun with a status of success; one that stalled ended with our own time-out.
		if want := []string{"transient 500", "transient 502", "transient 0", "transient 200", "transient 0", "transient 200", "transient 408"}; !slices.Equal(got, want) {
			t.Errorf("errors %q, want %q", got, want)
		}
		calls, row := eventsOf(t, a, 1)
		var statuses []auditlog.CallStatus
		for _, c := range calls {
			statuses = append(statuses, c.Status)
		}
		for i, c := range calls[4:6] {
			if c.Latency.Round(time.Second) != 20*time.Second {
				t.Errorf("slow call %d was cut off after %v, want 20 s", i, c.Latency)
			}
		}
		if want := []auditlog.CallStatus{"failure", "failure", "unknown", "unknown", "unknown", "unknown", "failure"}; !slices.Equal(statuses, want) {
			t.Errorf("call events %q, want %q", statuses, want)
		}
		if row.Attempts != 7 || len(row.Errors) != 7 || row.Status != "error" {
			t.Errorf("row event %+v", row)
		}
	})
}

// Between the rows are others that succeed, so that no failure is taken for one of the settings or the server.
func TestRepliesThatCannotBeUsed(t *testing.T) {
	html := map[string]string{"Content-Type": "text/html; charset=utf-8"}
	tests := []struct {
		name     string
		step     llmtest.Step
		reason   string
		attempts int
		facts    map[string]any
	}{
		{
			"bad request",
			llmtest.Step{Status: 400, Body: `{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}`},
			"api_call_failed", 1,
			map[string]any{"status_code": 400.0, "provider_code": "context_length_exceeded"},
		},
		{"too large", llmtest.Step{Status: 413}, "api_call_failed", 1, map[string]any{"status_code": 413.0}},
		{"content filter", llmtest.Step{Body: says("", "content_filter")}, "content_filtered", 1, nil},
		{
			"content filter on the prompt",
			llmtest.Step{Status: 400, Body: `{"error":{"message":"filtered","code":"content_filter"}}`},
			"content_filtered", 1, nil,
		},
		{
			"refusal",
			llmtest.Step{Body: `{"choices":[{"message":{"role":"assistant","content":null,"refusal":"I can't do that."},"finish_reason":"stop"}]}`},
			"refused", 1, nil,
		},
		{
			"length",
			llmtest.Step{Body: says("The beginning of", "length")},
			"truncated", 1,
			map[string]any{"partial": "The beginning of", "finish_reason": "length"},
		},
		{
			"no choices",
			llmtest.Step{Body: `{"id":"x","choices":[]}`},
			"empty_choices", 3,
			map[string]any{"response": map[string]any{"id": "x", "choices": []any{}}},
		},
		{"no content", llmtest.Step{Body: says("", "stop")}, "empty_content", 3, nil},
		{
			"unexpected shape",
			llmtest.Step{Body: `{"b":1,"a":2}`},
			"malformed_response", 3,
			map[string]any{"response_keys": []any{"b", "a"}},
		},
		{
			"a page",
			llmtest.Step{Body: "<html><body>Sign in</body></html>", Header: html},
			"invalid_json_response", 3,
			map[string]any{"content_type": "text/html; charset=utf-8", "body_preview": "<html><body>Sign in</body></html>"},
		},
		{"more than one JSON value", llmtest.Step{Body: says("a", "stop") + "{}"}, "invalid_json_response", 3, nil},
		{"larger than the limit", llmtest.Step{Body: says(strings.Repeat("a", 5000), "stop")}, "response_too_large", 1, nil},
		{
			"an error with status 200",
			llmtest.Step{Body: `{"error":{"message":"oops","type":"server_error","code":500}}`},
			"api_call_failed", 3, nil,
		},
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 2*len(tests), llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if n := promptRow(c.Prompt); n%2 == 0 {
				return &tests[n/2-1].step
			}
			return nil
		}})
		r := s.start(vars{"STAGE_LLM_MAX_REPLY_BYTES": "4KiB"})
		s.await(2 * len(tests))
		r.stop()
		a := s.verify()
		for i, res := range s.results(0) {
			if i%2 == 0 {
				if res.Fault != nil {
					t.Errorf("row %d failed: %s", res.Row, res.Body)
				}
				continue
			}
			tt, f := tests[i/2], res.Fault
			if f == nil || f.Reason != tt.reason || len(f.Errors) != tt.attempts {
				t.Errorf("%s: want %s after %d attempts: %s", tt.name, tt.reason, tt.attempts, res.Body)
				continue
			}
			for name, want := range tt.facts {
				if got := f.Raw[name]; fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %s is %v, want %v", tt.name, name, got, want)
				}
			}
			if _, row := eventsOf(t, &a, res.Row); row.Attempts != tt.attempts || row.Reason != tt.reason {
				t.Errorf("%s: row event %+v", tt.name, row)
			}
		}
	})
}

// A reply that stopped for a tool call is accepted by no setting.
func TestATruncatedReplyIsAcceptedWhereAllowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 2, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			return &llmtest.Step{Body: says("The beginning of", []string{"length", "tool_calls"}[promptRow(c.Prompt)-1])}
		}})
		r := s.start(vars{"STAGE_LLM_ACCEPT_TRUNCATED": "true"})
		s.await(2)
		r.stop()
		s.verify()
		results := s.results(0)
		if res := results[0]; res.Fault != nil || !strings.Contains(string(res.Body), `"llm_response":"The beginning of"`) {
			t.Errorf("%s", res.Body)
		}
		if f := results[1].Fault; f == nil || f.Reason != "truncated" || len(f.Errors) != 3 ||
			f.Raw["partial"] != "The beginning of" || f.Raw["finish_reason"] != "tool_calls" {
			t.Errorf("stopped for a tool call: %s", results[1].Body)
		}
	})
}

func TestARowWaitsForCapacityForEver(t *testing.T) {
	for _, throttle := range throttles() {
		t.Run(throttle, func(t *testing.T) {
			var began time.Time
			outage := 20 * time.Minute
			oneRow(t, llmtest.Config{Script: oneAtATime(func(llmtest.Call) *llmtest.Step {
				if began.IsZero() {
					began = time.Now()
				}
				if time.Since(began) < outage {
					return &llmtest.Step{Status: 529}
				}
				return nil
			})}, vars{"STAGE_THROTTLE": throttle, "STAGE_MAX_DISPATCH_DELAY_MS": "60000"}, func(s *site, a *audit) {
				if res := one(t, "results", s.results(0)); res.Fault != nil {
					t.Fatalf("%s", res.Body)
				}
				_, row := eventsOf(t, a, 1)
				if row.Attempts != 1 || row.CapacityRetries < 15 || row.FinishedAt.Sub(row.StartedAt) < outage {
					t.Errorf("%d attempts, %d capacity retries in %v", row.Attempts, row.CapacityRetries, row.FinishedAt.Sub(row.StartedAt))
				}
				if st := row.PoolStats; st.PeakDelay > time.Minute || st.PeakDelay < 50*time.Second {
					t.Errorf("peak delay %v, the bound is a minute", st.PeakDelay)
				}
			})
		})
	}
}

func TestARowTimeoutEndsTheWaitForCapacity(t *testing.T) {
	oneRow(t, always(llmtest.Step{Status: 429, Delay: time.Second}), vars{"STAGE_ROW_TIMEOUT": "30s"}, func(s *site, a *audit) {
		f := s.failed()
		if f.Reason != "row_timeout" || len(f.Errors) < 3 {
			t.Errorf("%s after %d calls", f.Reason, len(f.Errors))
		}
		for i, e := range f.Errors {
			if e.Attempt != i+1 || e.Class != "capacity" || e.StatusCode != 429 {
				t.Errorf("error %d: %+v", i, e)
			}
		}
		if _, row := eventsOf(t, a, 1); row.FinishedAt.Sub(row.StartedAt) < 30*time.Second || row.FinishedAt.Sub(row.StartedAt) > 31*time.Second || row.CapacityRetries != len(f.Errors) {
			t.Errorf("after %v and %d capacity retries, want 30 s and the call then in flight", row.FinishedAt.Sub(row.StartedAt), row.CapacityRetries)
		}
	})
}
