package stage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/nats-io/nats.go"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

const (
	parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentSpan  = "00f067aa0ba902b7"
	parent      = "00-" + parentTrace + "-" + parentSpan + "-01"
)

// wantAttributes checks that the span has these, and that those with the value nil are missing.
func (s *span) wantAttributes(t *testing.T, want map[string]any) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got := s.Attributes[key]; fmt.Sprint(got) != fmt.Sprint(want[key]) {
			t.Errorf("span %s: %s is %v, want %v", s.Name, key, got, want[key])
		}
	}
}

func (s *span) eventNames() (names []string) {
	for _, e := range s.Events {
		names = append(names, e.Name)
	}
	return names
}

func TestATraceContinuesThroughRowCallsAndResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Second, Script: llmtest.Steps(
			llmtest.Step{Status: 429, Header: map[string]string{"Retry-After": "3"}}, llmtest.Step{Status: 500})})
		s.newInput()
		s.publish(`{"n":"the row's secret text"}`, nats.Header{"traceparent": {parent}, "tracestate": {"vendor=x"}})
		s.publish(`{"n":2}`, nil)
		rec := &receiver{}
		r := s.startWith(vars{"STAGE_POOL_SIZE": "1", "STAGE_LLM_TEMPERATURE": "0.5"}, s.trace(rec))
		s.await(2)
		r.stop()
		a := s.verify()

		row, calls := rec.rowSpan(t, 1)
		if row.TraceID != parentTrace || row.Parent != parentSpan || row.State != "vendor=x" || row.Kind != tracepb.Span_SPAN_KIND_CONSUMER || row.Name != "process rows.>" {
			t.Errorf("the row's span does not continue the row's trace: %+v", row)
		}
		calledEvents, rowEvent := eventsOf(t, &a, 1)
		row.wantAttributes(t, map[string]any{
			"messaging.system": "nats", "messaging.operation.name": "process", "messaging.operation.type": "process",
			"messaging.destination.name": "rows.a", "messaging.destination.template": "rows.>", "messaging.destination.partition.id": "0",
			"messaging.consumer.group.name": "stage-0", "messaging.message.body.size": 29, "llm_stage.row.stream": "ROWS",
			"llm_stage.row.state_id": "stage/ROWS/0/1", "llm_stage.row.status": "success", "llm_stage.row.source": "call",
			"llm_stage.row.attempts": 2, "llm_stage.row.capacity_retries": 1, "error.type": nil,
		})
		if got, want := row.eventNames(), []string{"llm_stage.row.started", "llm_stage.attempt_failed", "llm_stage.attempt_failed", "llm_stage.row.finished"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		if took := row.End.Sub(row.Start).Round(100 * time.Millisecond); took < 4*time.Second { // 3 s of Retry-After, a wait of up to 2 s, and the call
			t.Errorf("the row's span takes %v: not from taken to emitted", took)
		}
		if d := row.Start.Sub(rowEvent.QueuedAt).Abs(); d > time.Microsecond {
			t.Errorf("the row's span starts %v away from when the row was taken", d)
		}

		if len(calls) != 3 {
			t.Fatalf("%d spans of calls, want 3", len(calls))
		}
		if waited := calls[1].Start.Sub(calls[0].End); calledEvents[0].RetryAfter != 3*time.Second || waited < 3*time.Second {
			t.Errorf("the second call came %v after the first, whose event says %v", waited, calledEvents[0].RetryAfter)
		}
		for i, want := range []map[string]any{
			{"http.response.status_code": 429, "error.type": "429", "llm_stage.call.error_class": "capacity", "llm_stage.call.status": "capacity_retry", "llm_stage.call.retry_after_seconds": 3, "http.request.resend_count": nil},
			{"http.response.status_code": 500, "error.type": "500", "llm_stage.call.error_class": "transient", "llm_stage.call.status": "failure", "http.request.resend_count": 1},
			{
				"http.response.status_code": 200, "error.type": nil, "llm_stage.call.error_class": nil, "llm_stage.call.status": "success", "http.request.resend_count": 2,
				"gen_ai.response.model": "small", "gen_ai.response.finish_reasons": "[stop]",
				"gen_ai.usage.input_tokens": calledEvents[2].Usage.PromptTokens, "gen_ai.usage.output_tokens": calledEvents[2].Usage.CompletionTokens,
			},
		} {
			c := calls[i]
			c.wantAttributes(t, want)
			c.wantAttributes(t, map[string]any{
				"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "small", "gen_ai.request.temperature": 0.5,
				"server.address": "llm.test", "llm_stage.call.attempt": i + 1, "llm_stage.call.id": calledEvents[i].CallID,
			})
			if c.Name != "chat small" || c.Kind != tracepb.Span_SPAN_KIND_CLIENT || c.TraceID != parentTrace || c.Failed != (i < 2) {
				t.Errorf("call %d: %+v", i+1, c)
			}
			if d := (c.End.Sub(c.Start) - calledEvents[i].Latency).Abs(); d > 2*time.Millisecond {
				t.Errorf("call %d: its span takes %v, its latency is %v", i+1, c.End.Sub(c.Start), calledEvents[i].Latency)
			}
			if c.Start.Before(row.Start) || c.End.After(row.End) {
				t.Errorf("call %d is not within its row", i+1)
			}
		}

		second, _ := rec.rowSpan(t, 2)
		if second.Parent != "" || second.TraceID == parentTrace {
			t.Errorf("the row without a trace did not get a new one: %+v", second)
		}
		for i, res := range s.results(0) {
			own, _ := rec.rowSpan(t, i+1)
			if got, want := res.Header.Values("traceparent"), []string{"00-" + own.TraceID + "-" + own.ID + "-01"}; !slices.Equal(got, want) {
				t.Errorf("result %d: traceparent %q, want %q", i+1, got, want)
			}
		}
		if got := s.results(0)[0].Header.Get("tracestate"); got != "vendor=x" {
			t.Errorf("tracestate %q", got)
		}
		for _, x := range s.tap.seen() {
			if x.Header.Get("traceparent") != "" || x.Header.Get("tracestate") != "" {
				t.Error("the trace was sent to the provider")
			}
		}
		for _, sp := range rec.received(t) {
			if text := fmt.Sprintf("%+v", sp); strings.Contains(text, "secret text") || strings.Contains(text, apiKey) {
				t.Errorf("a span holds a payload or the key: %s", text)
			}
			if sp.Resource["service.name"] != "llm-stage" || sp.Resource["service.instance.id"] != rowEvent.RunID || sp.Scope != "github.com/llm-stage/stage" {
				t.Errorf("resource %v, scope %s", sp.Resource, sp.Scope)
			}
		}
	})
}

func TestHowARowSpellsItsTraceIsKept(t *testing.T) {
	tests := []struct {
		name      string
		row       nats.Header
		continued bool
		want      map[string]string // headers of the result, by whose span; empty: gone
	}{
		{"as the contract says", nats.Header{"traceparent": {parent}}, true, map[string]string{"traceparent": "row"}},
		{"as Go's canonical headers", nats.Header{"Traceparent": {parent}}, true, map[string]string{"Traceparent": "row", "traceparent": ""}},
		{"twice", nats.Header{"Traceparent": {parent}, "traceparent": {parent}}, true, map[string]string{"Traceparent": "row", "traceparent": "row"}},
		{"not valid", nats.Header{"traceparent": {"nonsense"}, "tracestate": {"vendor=x"}}, false, map[string]string{"traceparent": "row", "tracestate": ""}},
		{"baggage passes", nats.Header{"traceparent": {parent}, "baggage": {"k=v"}}, true, map[string]string{"traceparent": "row", "baggage": "k=v"}},
		{"not sampled", nats.Header{"traceparent": {strings.TrimSuffix(parent, "1") + "0"}}, true, map[string]string{"traceparent": "not sampled"}},
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{})
		s.newInput()
		for _, tt := range tests {
			s.publish(`{"n":1}`, tt.row)
		}
		rec := &receiver{}
		r := s.startWith(nil, s.trace(rec))
		s.await(len(tests))
		r.stop()
		for i, res := range s.results(0) {
			tt := tests[i]
			for key, whose := range tt.want {
				got, want := res.Header.Values(key), []string{whose}
				switch whose {
				case "":
					want = nil
				case "row":
					row, _ := rec.rowSpan(t, i+1)
					if (row.TraceID == parentTrace) != tt.continued {
						t.Errorf("%s: trace %s, continued: want %v", tt.name, row.TraceID, tt.continued)
					}
					want = []string{"00-" + row.TraceID + "-" + row.ID + "-01"}
				case "not sampled":
					if len(got) != 1 || !strings.HasPrefix(got[0], "00-"+parentTrace) || !strings.HasSuffix(got[0], "-00") ||
						strings.Contains(got[0], parentSpan) {
						t.Errorf("%s: traceparent %q", tt.name, got)
					}
					if spans := len(rec.received(t)); spans != 2*(len(tests)-1) { // of a row and its call
						t.Errorf("%d spans, want none of the row that is not sampled", spans)
					}
					continue
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s: %s: got %q, want %q", tt.name, key, got, want)
				}
			}
		}
	})
}

func TestARowThatNeedsNoCallHasItsSpanToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Second})
		s.newInput()
		s.publish(`{"n":1}`, nil)
		s.publish(`{"n":1}`, nil) // dedupe
		s.publish(`no object`, nil)
		s.publish(`{"n":4,"llm_response_error":{"reason":"refused"}}`, nats.Header{"Stage-Status": {"error"}})
		rec := &receiver{}
		r := s.startWith(vars{"STAGE_DEDUPE": "inflight"}, s.trace(rec))
		s.await(4)
		r.stop()
		first, _ := rec.rowSpan(t, 1)
		for seq, want := range map[int]map[string]any{
			2: {"llm_stage.row.source": auditlog.SourceDedupe, "llm_stage.row.status": "success", "llm_stage.row.attempts": 0},
			3: {"llm_stage.row.source": nil, "llm_stage.row.status": "error", "error.type": "invalid_row"},
			4: {"llm_stage.row.source": auditlog.SourceUpstream, "llm_stage.row.status": "error", "error.type": "refused"},
		} {
			row, calls := rec.rowSpan(t, seq)
			row.wantAttributes(t, want)
			if len(calls) > 0 || row.Failed != (seq > 2) {
				t.Errorf("row %d: %d calls, failed %v", seq, len(calls), row.Failed)
			}
			if linked := slices.Equal(row.Links, []string{first.ID}); linked != (seq == 2) {
				t.Errorf("row %d: links to %q", seq, row.Links)
			}
		}
	})
}

func TestAReplyFromTheJournalIsTracedInTheTermThatEmitsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The first row takes long, so the replies to the others wait for it, in the journal.
		s := loaded(t, 5, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if promptRow(c.Prompt) == 1 {
				return &llmtest.Step{Delay: time.Minute}
			}
			return &llmtest.Step{Delay: time.Second}
		}})
		killed, rec := &receiver{}, &receiver{}
		first := s.startWith(nil, s.trace(killed))
		time.Sleep(10 * time.Second)
		first.kill()
		_ = first.wait()
		for _, row := range killed.received(t) {
			if row.Kind == tracepb.Span_SPAN_KIND_CONSUMER {
				row.wantAttributes(t, map[string]any{"llm_stage.row.status": "let_go"})
			}
		}
		r := s.startWith(nil, s.trace(rec))
		s.await(5)
		r.stop()
		for seq := 2; seq <= 5; seq++ {
			row, calls := rec.rowSpan(t, seq)
			row.wantAttributes(t, map[string]any{"llm_stage.row.source": auditlog.SourceJournal, "llm_stage.row.status": "success", "llm_stage.row.queued_seconds": nil})
			if len(calls) != 0 {
				t.Errorf("row %d: %d calls in the term that had its reply", seq, len(calls))
			}
		}
	})
}
