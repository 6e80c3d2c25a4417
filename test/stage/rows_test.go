package stage_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

func TestAnInvalidRowIsAnsweredInItsPlace(t *testing.T) {
	bodies := []string{
		"", " ", "hello", "null", "true", "12", `"text"`, `[{"n":1}]`, `{"n":1`, `{"n":1}}`, `{"n":1} {"n":2}`, `{"n":1}x`, `{n:1}`, `{"n":01}`,
		"{\"n\":\"\xff\"}", "{\"\xc3\x28\":1}", "{\"n\":\"a\x00b\"}", `{"n":"\x"}`, "\xef\xbb\xbf{\"n\":1}",
		`{"n":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`,
		strings.Repeat("é", 700),
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Second})
		s.newInput()
		for i, body := range bodies { // good rows between the bad ones
			s.publish(fmt.Sprintf(`{"n":%d}`, i+1), nil)
			s.publish(body, nats.Header{"X-Id": {"kept"}})
		}
		r := s.start(nil)
		s.await(2 * len(bodies))
		r.stop()
		a := s.verify()
		for i, res := range s.results(0) {
			if i%2 == 0 {
				if res.Fault != nil {
					t.Errorf("row %d failed: %s", res.Row, res.Body)
				}
				continue
			}
			body := bodies[i/2]
			if res.Fault == nil {
				t.Errorf("%.80q is not a row, but got: %s", body, res.Body)
				continue
			}
			preview, _ := res.Fault.Raw["body_preview"].(string)
			whole := strings.ToValidUTF8(body, "")
			switch names := fieldNames(t, res.Body); {
			case res.Fault.Reason != "invalid_row" || len(res.Fault.Errors) != 0 || !slices.Equal(names, []string{"llm_response_error"}):
				t.Errorf("%.80q: %s", body, res.Body)
			case !utf8.ValidString(preview) || len(preview) > 500 || !strings.HasPrefix(whole, preview) || len(whole) <= 500 && preview != whole:
				t.Errorf("%.80q: preview %q", body, preview)
			case res.Header.Get("X-Id") != "kept":
				t.Errorf("%.80q: headers %v", body, res.Header)
			}
			if calls, row := eventsOf(t, &a, res.Row); len(calls) != 0 || row.Attempts != 0 || row.Source != "" || row.Reason != "invalid_row" {
				t.Errorf("%.80q: %d calls, event %+v", body, len(calls), row)
			}
		}
	})
}

func TestAMissingFieldFailsItsRowAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const template = "Row {{ row.n }} of {{ row.product.name }}"
		s := newSite(t, llmtest.Config{})
		s.newInput()
		s.publish(`{"n":1,"product":{"name":"kettle"}}`, nil)
		s.publish(`{"n":2,"product":{}}`, nil)
		s.publish(`{"n":3}`, nil)
		s.publish(`{"n":4,"product":{"name":"lamp"}}`, nil)
		r := s.start(vars{"STAGE_TEMPLATE": template})
		s.await(4)
		r.stop()
		a := s.verify()
		for i, res := range s.results(0) {
			if i == 0 || i == 3 {
				if res.Fault != nil {
					t.Errorf("row %d failed: %s", res.Row, res.Body)
				}
				continue
			}
			f := res.Fault
			if f == nil || f.Reason != "template_rendering_failed" || f.Raw["template_hash"] != llm.Hash([]byte(template)) || f.Raw["template_source"] != nil || len(f.Errors) != 0 {
				t.Errorf("row %d: %s", res.Row, res.Body)
				continue
			}
			if !strings.Contains(f.Error, "product") {
				t.Errorf("row %d: %q does not say what is missing", res.Row, f.Error)
			}
			if names := fieldNames(t, res.Body); names[0] != "n" || names[len(names)-1] != "llm_response_error" {
				t.Errorf("row %d: fields %q", res.Row, names)
			}
			if calls, _ := eventsOf(t, &a, res.Row); len(calls) != 0 {
				t.Errorf("row %d: %d calls", res.Row, len(calls))
			}
		}
	})
}

func TestRowsThatArriveAsErrorsPassOnInTheirPlace(t *testing.T) {
	upstream := nats.Header{"Stage-Status": {"error"}, "Stage-Reason": {"refused"}, "Stage-Source-Stream": {"ELSEWHERE"}, "X-Id": {"kept"}}
	bodies := []string{`{"n":2,"llm_response_error":{"reason":"refused"}}`, "not even JSON", ``}
	for mode, statuses := range map[string]string{"pass": "success error error error success", "process": "success success error error success"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, llmtest.Config{Latency: time.Second})
				s.newInput()
				s.publish(`{"n":1}`, nil)
				for _, body := range bodies {
					s.publish(body, maps.Clone(upstream))
				}
				s.publish(`{"n":5}`, nats.Header{"Stage-Status": {"success"}})
				r := s.start(vars{"STAGE_ON_UPSTREAM_ERROR": mode})
				s.await(5)
				r.stop()
				a := s.verify()
				results := s.results(0)
				var got []string
				for _, res := range results {
					got = append(got, res.Header.Get("Stage-Status"))
				}
				if got := strings.Join(got, " "); got != statuses {
					t.Errorf("statuses %s, want %s", got, statuses)
				}
				if mode == "process" {
					if body := results[1].Body; strings.Contains(string(body), "llm_response_error") {
						t.Errorf("the previous error is still there: %s", body)
					}
					return
				}
				for i, body := range bodies {
					res := results[i+1]
					if string(res.Body) != body || res.Header.Get("X-Id") != "kept" || res.Header.Get("Stage-Source-Stream") != "ROWS" {
						t.Errorf("passed on as %v %s, want %s", res.Header, res.Body, body)
					}
					if calls, row := eventsOf(t, &a, res.Row); len(calls) != 0 || row.Source != "upstream" || row.Status != "error" {
						t.Errorf("%d calls, event %+v", len(calls), row)
					}
				}
			})
		})
	}
}

func TestFailedRowsAlsoGoToTheDeadLetterSubject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if promptRow(c.Prompt) == 2 {
				return &llmtest.Step{Status: 400}
			}
			return nil
		}})
		s.newInput()
		s.newStream("DEAD", "dead.rows")
		s.publish(`{"n":1}`, nil)
		s.publish(`{"n": 2}`, nats.Header{"X-Id": {"two"}, "Stage-Model": {"large"}, "Nats-Msg-Id": {"id"}})
		s.publish(`nonsense`, nil)
		r := s.start(vars{"STAGE_DEAD_LETTER_SUBJECT": "dead.rows"})
		s.await(3)
		r.stop()
		s.verify()
		dead, results := s.read("DEAD", ">"), s.results(0)
		if len(dead) != 2 {
			t.Fatalf("%d dead letters, want 2", len(dead))
		}
		for i, want := range []struct{ body, reason string }{{`{"n": 2}`, "api_call_failed"}, {"nonsense", "invalid_row"}} {
			if m := dead[i]; string(m.Body) != want.body || m.Header.Get("Stage-Reason") != want.reason {
				t.Errorf("dead letter %v %s, want %s %s", m.Header, m.Body, want.reason, want.body)
			}
			if dead[i].Time.After(results[i+1].Time) {
				t.Error("the dead letter was stored after the result")
			}
		}
		if h := dead[0].Header; h.Get("X-Id") != "two" || h.Get("Stage-Model") != "large" || h.Get("Nats-Msg-Id") == "id" {
			t.Errorf("headers of the original: %v", h)
		}
	})
}

// An upstream error is a dead letter too, with its own reason where that can be found.
func TestADeadLetterOfAnUpstreamErrorNamesItsReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{})
		s.newInput()
		s.newStream("DEAD", "dead.rows")
		rows := []struct{ body, header, want string }{
			{`{"n":1,"llm_response_error":{"reason":"refused","errors":[]}}`, "", "refused"},
			{`{"n":2,"other_error":{"reason":"truncated"}}`, "empty_content", "truncated"}, // the upstream field has its own name
			{`{"n":3}`, "row_timeout", "row_timeout"},
			{`{"n":4,"llm_response_error":{"reason":"two\nlines"}}`, "", "upstream_error"},
			{`not even JSON`, "", "upstream_error"},
		}
		for _, row := range rows {
			header := nats.Header{"Stage-Status": {"error"}}
			if row.header != "" {
				header["Stage-Reason"] = []string{row.header}
			}
			s.publish(row.body, header)
		}
		r := s.start(vars{"STAGE_DEAD_LETTER_SUBJECT": "dead.rows"})
		s.await(len(rows))
		r.stop()
		a := s.verify()
		dead, results := s.read("DEAD", ">"), s.results(0)
		for i, row := range rows {
			if got := dead[i].Header["Stage-Reason"]; len(got) != 1 || got[0] != row.want || string(dead[i].Body) != row.body {
				t.Errorf("dead letter %d: reason %q, %s; want %s", i+1, got, dead[i].Body, row.want)
			}
			if string(results[i].Body) != row.body || results[i].Header.Get("Stage-Reason") != "" {
				t.Errorf("result %d was changed: %v %s", i+1, results[i].Header, results[i].Body)
			}
			if _, e := eventsOf(t, &a, results[i].Row); e.Reason != "" {
				t.Errorf("row event %d has the reason %q of another stage", i+1, e.Reason)
			}
		}
	})
}

func TestAResultTooLargeForAMessageIsAnError(t *testing.T) {
	const limit = 1 << 20 // max payload of the server
	tests := []struct {
		name       string
		row, reply int // bytes; a reply of none is an error
		reason     string
		keepsRow   bool
	}{
		{"fits", 300 << 10, 300 << 10, "", true},
		{"the reply is too large", 600 << 10, 600 << 10, "result_too_large", true},
		{"the row leaves no room", limit - 400, 10, "result_too_large", false},
		{"the row leaves no room for its own error", limit - 400, 0, "api_call_failed", false},
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if reply := tests[promptRow(c.Prompt)-1].reply; reply > 0 {
				return &llmtest.Step{Body: says(strings.Repeat("a", reply), "stop")}
			}
			return &llmtest.Step{Status: 400}
		}})
		s.newInput()
		for i, tt := range tests {
			s.publish(fmt.Sprintf(`{"n":%d,"pad":"%s"}`, i+1, strings.Repeat("x", tt.row-20)), nil)
		}
		r := s.start(nil)
		s.await(len(tests))
		r.stop()
		s.verify()
		for i, res := range s.results(0) {
			tt := tests[i]
			if (res.Fault == nil) != (tt.reason == "") || res.Fault != nil && res.Fault.Reason != tt.reason {
				t.Fatalf("%s: %.200s", tt.name, res.Body)
			}
			preview := res.Fault != nil && res.Fault.Raw["body_preview"] != nil
			kept := json.Valid(res.Body) && strings.HasPrefix(string(res.Body), fmt.Sprintf(`{"n":%d,"pad"`, i+1))
			if kept != tt.keepsRow || preview == tt.keepsRow {
				t.Errorf("%s: the row is kept: %v, a preview: %v; want %v and %v", tt.name, kept, preview, tt.keepsRow, !tt.keepsRow)
			}
		}
	})
}
