package stage_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
)

func TestPayloadsOfCallEventsMayBeHashedAlone(t *testing.T) {
	steps := llmtest.Steps(llmtest.Step{Status: 500, Body: "no <JSON>"}, llmtest.Step{Trouble: llmtest.Reset})
	oneRow(t, llmtest.Config{Script: steps}, vars{"STAGE_AUDIT_PAYLOADS": "hash"}, func(s *site, a *audit) {
		calls, _ := eventsOf(s.t, a, 1)
		seen := s.tap.seen()
		for i, c := range calls {
			wantRequest, wantResponse := llm.Hash(seen[i].Request), ""
			if len(seen[i].Response) > 0 {
				wantResponse = llm.Hash(seen[i].Response)
			}
			if c.RequestHash != wantRequest || c.ResponseHash != wantResponse || len(c.Request)+len(c.Response) > 0 {
				s.t.Errorf("call %d: hashes %q and %q, want %q and %q; bodies %s and %s, want none",
					i, c.RequestHash, c.ResponseHash, wantRequest, wantResponse, c.Request, c.Response)
			}
		}
	})
}

func TestARowEventReportsTheWholeHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 4, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			// The last row finishes first.
			return &llmtest.Step{Delay: time.Duration(5-promptRow(c.Prompt)) * time.Second}
		}})
		r := s.start(vars{"STAGE_THROTTLE": "classic", "STAGE_POOL_SIZE": "3"})
		s.await(4)
		r.stop()
		a := s.verify()
		for i, want := range []struct {
			complete        uint64
			started, ended  time.Duration // after the rows were taken
			maxConcurrent   int
			finishedSuccess uint64
		}{
			{3, 0, 4 * time.Second, 3, 4}, {1, 0, 3 * time.Second, 3, 2}, {0, 0, 2 * time.Second, 3, 1}, {2, 2 * time.Second, 3 * time.Second, 3, 3},
		} {
			_, row := eventsOf(t, &a, uint64(i+1))
			if row.SubmitIndex != uint64(i) {
				t.Errorf("row %d: submit index %d", i+1, row.SubmitIndex)
			}
			// Rows 2 and 4 finish at the same moment, in either order.
			if i%2 == 0 && row.CompleteIndex != want.complete {
				t.Errorf("row %d: complete index %d, want %d", i+1, row.CompleteIndex, want.complete)
			}
			if i%2 == 0 && row.PoolStats.Successes != want.finishedSuccess {
				t.Errorf("row %d: %d successes, want %d", i+1, row.PoolStats.Successes, want.finishedSuccess)
			}
			started, ended := row.StartedAt.Sub(row.QueuedAt).Round(100*time.Millisecond), row.FinishedAt.Sub(row.QueuedAt).Round(100*time.Millisecond)
			if started != want.started || ended != want.ended {
				t.Errorf("row %d: started after %v, finished after %v; want %v and %v", i+1, started, ended, want.started, want.ended)
			}
			if row.PoolConfig.PoolSize != 3 || row.PoolStats.MaxConcurrent != want.maxConcurrent || row.Source != auditlog.SourceCall || row.Usage == nil {
				t.Errorf("row %d: %+v", i+1, row)
			}
			if row.TemplateHash != llm.Hash([]byte("Row {{ row.n }}")) || row.VariablesHash != llm.Hash(fmt.Appendf(nil, `{"n":%d}`, i+1)) {
				t.Errorf("row %d: hashes %s and %s", i+1, row.TemplateHash, row.VariablesHash)
			}
		}
	})
}

func TestTheRunEventsReportSettingsAndSummary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// A rate that the pool exceeds, so that rows are sure to wait for the throttle.
		s := loaded(t, 30, llmtest.Config{Latency: time.Second, Rate: 5, Errors: map[int]float64{400: .2}, Seed: 4})
		r := s.start(vars{"STAGE_THROTTLE": "classic"})
		s.await(30)
		r.stop()
		a := s.verify() // which checks the summary
		if got, want := a.phases(), []string{"start", "claim", "end"}; !slices.Equal(got, want) {
			t.Fatalf("run events %q, want %q", got, want)
		}
		start, end := a.runs[0].E, a.runs[2].E
		if start.Settings["STAGE_POOL_SIZE"] != "10" || start.Settings["STAGE_LLM_API_KEY"] != "(set)" || start.Settings["STAGE_LLM_MODEL"] != "small" {
			t.Errorf("settings %v", start.Settings)
		}
		if start.RunID == "" || end.RunID != start.RunID || a.calls[0].E.RunID != start.RunID || a.rows[0].E.RunID != start.RunID {
			t.Error("the events of one process have several run ids")
		}
		sum := end.Summary
		if sum.RowsFailed == 0 || sum.CapacityRetries == 0 || sum.PeakDelay == 0 || sum.Throttled == 0 || sum.Executing < 15*time.Second {
			t.Errorf("summary %+v", sum)
		}
		if u := one(t, "models", sum.Usage); u.Provider != "openai" || u.Model != "small" || u.Calls != sum.Total.Calls || u.Usage.TotalTokens != sum.Total.Usage.TotalTokens {
			t.Errorf("usage %+v, total %+v", u, sum.Total)
		}
	})
}

func TestMetricsAgreeWithTheAudit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 40, llmtest.Config{Latency: time.Second, Errors: map[int]float64{400: .2, 429: .2}, Seed: 4})
		r := s.start(vars{"STAGE_THROTTLE": "classic"})
		s.await(40)
		synctest.Wait() // until the last acknowledgements of the audit are counted
		_, text := r.get("/metrics")
		r.stop()
		a := s.verify()
		want := map[string]int{}
		for _, res := range s.results(0) {
			want[`llm_stage_rows_total{partition="0",status="`+res.Header.Get("Stage-Status")+`"}`]++
		}
		for _, e := range a.calls {
			want[fmt.Sprintf(`llm_stage_calls_total{model="small",provider="openai",status="%s"}`, e.E.Status)]++
			if e.E.Status == auditlog.CallCapacityRetry {
				want[`llm_stage_capacity_retries_total{provider="openai"}`]++
			}
			if e.E.Usage != nil {
				want[`llm_stage_tokens_total{model="small",provider="openai",type="prompt"}`] += int(e.E.Usage.PromptTokens)
			}
		}
		want[`llm_stage_audit_events_total{kind="call"}`] = len(a.calls)
		want[`llm_stage_audit_events_total{kind="row"}`] = len(a.rows)
		want[`llm_stage_row_duration_seconds_count`] = 40
		want[`llm_stage_in_flight_calls`] = 0
		want[`llm_stage_active{partition="0"}`] = 1
		want[`llm_stage_window_rows{partition="0"}`] = 0
		for series, n := range want {
			if !hasLine(text, series+" ", fmt.Sprintf(" %d", n)) {
				t.Errorf("want %s %d, have\n%s", series, n, linesOf(text, series[:strings.IndexAny(series+"{", "{ ")]))
			}
		}
	})
}
