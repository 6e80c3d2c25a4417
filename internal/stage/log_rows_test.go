package stage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/stagetest"
)

// ofRow returns the log lines of a row, in order.
func (l *lab) ofRow(seq int) (said []string, lines []map[string]any) {
	l.t.Helper()
	for _, line := range stagetest.JSONLines[map[string]any](l.t, l.logs.String()) {
		if line["sequence"] != float64(seq) {
			continue
		}
		text := fmt.Sprint(line["msg"])
		for _, key := range []string{"status", "class", "source", "reason"} {
			if v := line[key]; v != nil {
				text += fmt.Sprintf(" %s=%v", key, v)
			}
		}
		said, lines = append(said, text), append(lines, line)
	}
	return said, lines
}

func TestTheLogFollowsEachRowAtDebug(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: llmtest.Steps(
			llmtest.Step{Status: 429}, llmtest.Step{Status: 503}, llmtest.Step{Status: 500}, llmtest.Step{},
			llmtest.Step{Status: 400, Body: `{"error":{"message":"sk-first-secret and the row's secret text"}}`},
		)}, map[string]string{"STAGE_POOL_SIZE": "1", "STAGE_LOG_LEVEL": "debug"})
		l.log = logging.New(&l.logs, "debug", "json")
		l.load("also secret", "the row's secret text")
		l.work(2, nil)
		said, lines := l.ofRow(1)
		want := []string{
			"row queued", "row started", "call status=capacity_retry class=capacity reason=api_call_failed",
			"call status=capacity_retry class=capacity reason=api_call_failed",
			"a call failed, its row is retried or fails status=failure class=transient reason=api_call_failed",
			"call status=success", "row finished source=call",
		}
		if !slices.Equal(said, want) {
			t.Errorf("row 1: got\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
		}
		for _, line := range lines {
			if id, _ := line["run_id"].(string); id == "" || line["partition"] != 0.0 {
				t.Errorf("a line without run id or partition: %v", line)
			}
		}
		if end := lines[len(lines)-1]; end["attempts"] != 2.0 || end["capacity_retries"] != 2.0 {
			t.Errorf("the last line is %v, want 2 attempts and 2 capacity retries", end)
		}
		said, lines = l.ofRow(2)
		if !slices.Contains(said, "row failed source=call reason=api_call_failed") {
			t.Errorf("row 2: got\n%s", strings.Join(said, "\n"))
		}
		if got, want := lines[len(lines)-1]["error"], "openai: 400: [redacted] and […]"; got != want { // what it quotes of the row is left out
			t.Errorf("row 2 failed for %q, want %q", got, want)
		}
		for _, secret := range []string{"sk-first-secret", "secret text", "also secret"} {
			if strings.Contains(l.logs.String(), secret) {
				t.Errorf("the log holds %q", secret)
			}
		}
	})
}

func TestAStormOfFailedRowsIsAFewLinesWithACount(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Errors: map[int]float64{400: 1}}, map[string]string{"STAGE_ON_FATAL": "fail"})
		l.log = logging.New(&l.logs, "info", "json")
		l.load(questions(200)...)
		l.work(200, nil)
		logging.Flush(l.log)
		lines, failed := 0, 0
		for _, line := range stagetest.JSONLines[struct {
			Msg     string
			AndMore int    `json:"and_more"`
			Reason  string `json:"reason"`
		}](t, l.logs.String()) {
			if line.Msg == "row failed" {
				lines++
				failed += 1 + line.AndMore
			}
		}
		if failed != 200 || lines > 20 {
			t.Errorf("%d lines report %d failed rows, want few lines and 200 rows:\n%s", lines, failed, l.logs.String())
		}
	})
}

func TestASummaryIsLoggedEvery30SecondsWhileThereIsWork(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Second}, map[string]string{"STAGE_POOL_SIZE": "2", "STAGE_WINDOW": "16"})
		l.log = logging.New(&l.logs, "info", "json")
		l.load(questions(150)...) // 75 s of work
		r := l.start(nil, Options{})
		go r.LogProgress(t.Context(), nil)
		time.Sleep(4 * time.Minute) // most of it without work
		r.stop()
		var summaries []map[string]any
		for _, line := range stagetest.JSONLines[map[string]any](t, l.logs.String()) {
			if line["msg"] == "working" {
				summaries = append(summaries, line)
			}
		}
		if len(summaries) != 3 {
			t.Fatalf("%d summaries, want 3 for 75 s of work:\n%s", len(summaries), l.logs.String())
		}
		first, second := summaries[0], summaries[1]
		within := func(key string, line map[string]any, low, high float64) {
			t.Helper()
			if v, ok := line[key].(float64); !ok || v < low || v > high {
				t.Errorf("%s is %v, want %v to %v", key, line[key], low, high)
			}
		}
		within("rows_succeeded", first, 40, 60)
		within("rows_left", first, 90, 110)
		within("rows_per_second", second, 1.8, 2.2)
		within("eta_seconds", second, 12, 20)
		within("in_flight", second, 1, 2)
		within("tokens", second, 1, 1e6)
		for _, key := range []string{"run_id", "waiting", "dispatch_delay_ms", "capacity_retries", "calls", "cost_usd", "rows_failed"} {
			if first[key] == nil {
				t.Errorf("the summary has no %s: %v", key, first)
			}
		}
		if last := summaries[2]; last["rows_left"] != 0.0 || last["eta_seconds"] != nil {
			t.Errorf("the last summary is %v, want no rows left and no ETA", last)
		}
	})
}
