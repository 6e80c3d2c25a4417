package stage

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// received is how many calls the first LLM got.
func (l *lab) received() int { return int(l.llms["first.test"].Stats().Received) }

func TestEqualRequestsInFlightShareOneCall(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Second}, map[string]string{"STAGE_DEDUPE": "inflight"})
		for i := range 40 {
			l.load(fmt.Sprintf("question %d", i%4))
		}
		l.work(40, nil)
		if got := l.received(); got != 4 {
			t.Errorf("%d calls for 4 questions", got)
		}
		for i, r := range l.results() {
			if q := fmt.Sprintf("question %d", i%4); r.Q != q || r.Text != llmtest.Answer(q) {
				t.Errorf("row %d: %+v", i, r)
			}
		}
		if got := l.sources(); !maps.Equal(got, map[string]int{auditlog.SourceCall: 4, auditlog.SourceDedupe: 36}) {
			t.Errorf("sources %v", got)
		}
		var used, rows int64
		for _, e := range l.events(auditlog.KindCall) {
			used += e.Call.Usage.TotalTokens
		}
		for _, e := range l.events(auditlog.KindRow) {
			if e.Row.Usage != nil {
				rows += e.Row.Usage.TotalTokens
			}
		}
		if used != rows {
			t.Errorf("calls used %d tokens, the rows report %d: a shared call counts once", used, rows)
		}
	})
}

// TestAVerdictOnTheRequestIsShared: the provider's answer about a request applies to all rows that sent it; what
// happened to a call does not, so the next of them makes its own call.
func TestAVerdictOnTheRequestIsShared(t *testing.T) {
	for _, test := range []struct {
		status, calls, errors int
	}{{400, 1, 3}, {500, 2, 1}} {
		stagetest.Virtual(t, func(t *testing.T) {
			l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
				if c.N == 0 {
					return &llmtest.Step{Status: test.status, Delay: time.Second}
				}
				return nil
			}}, map[string]string{"STAGE_DEDUPE": "inflight", "STAGE_RETRY_MAX_ATTEMPTS": "1"})
			l.load("same", "same", "same")
			l.work(3, nil)
			failed := 0
			for _, r := range l.results() {
				if r.Error != nil {
					failed++
					if r.Error.Reason != "api_call_failed" || len(r.Error.Errors) != 1 {
						t.Errorf("error %+v", r.Error)
					}
				}
			}
			if l.received() != test.calls || failed != test.errors {
				t.Errorf("status %d: %d calls, %d errors; want %d and %d", test.status, l.received(), failed, test.calls, test.errors)
			}
		})
	}
}

func TestWaitingRowsGoBackWhenTheStageStops(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		// A call takes a second, so that all ten rows are there before the one among them is answered.
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: llmtest.Steps(llmtest.Step{Status: 429})}, map[string]string{
			"STAGE_DEDUPE": "inflight", "STAGE_MIN_DISPATCH_DELAY_MS": "60000", "STAGE_MAX_DISPATCH_DELAY_MS": "60000",
		})
		l.load(times("same", 10)...)
		r := l.start(nil, Options{})
		time.Sleep(5 * time.Second) // the leader was rejected and waits
		r.stop()
		if got := len(l.bodies()); got != 0 {
			t.Errorf("%d results", got)
		}
		l.work(10, map[string]string{"STAGE_MIN_DISPATCH_DELAY_MS": "0"})
		if got := l.received(); got != 2 {
			t.Errorf("%d calls, want the rejected one and another", got)
		}
	})
}

// rerun empties results, audit and journal and loads the rows again: another run of the same file.
func (l *lab) rerun(questions []string) {
	l.t.Helper()
	for _, stream := range []string{"ROWS", "RESULTS", "AUDIT", "JOURNAL"} {
		stagetest.Must(l.t, l.js.DeleteStream(l.t.Context(), stream))
	}
	l.rows = false
	l.load(questions...)
}

func TestARerunWithStoredRepliesCostsNothingAndGivesTheSameBytes(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var questions []string
		for i := range 90 {
			questions = append(questions, fmt.Sprintf("question %d", i%60))
		}
		l := newLab(t, llmtest.Config{Latency: 50 * time.Millisecond, LatencySigma: 1, Errors: map[int]float64{500: .05}},
			map[string]string{
				"STAGE_DEDUPE": "stored", "STAGE_DEDUPE_TTL": "1h", "STAGE_RETRY_MAX_ATTEMPTS": "20", "STAGE_FALLBACKS": "anthropic:claude",
				"STAGE_LLM_ANTHROPIC_BASE_URL": "http://second.test/v1", "STAGE_LLM_ANTHROPIC_API_KEY": "sk-second-secret",
			})
		l.serve("second.test", llmtest.Config{})
		l.load(questions...)
		l.work(90, nil)
		first, calls := l.bodies(), l.received()
		if got := l.sources(); got[auditlog.SourceCall] != 60 {
			t.Errorf("first run: sources %v, want a call for each of 60 questions", got)
		}

		l.rerun(questions)
		l.work(90, map[string]string{"STAGE_POOL_SIZE": "1"})
		if got := l.received(); got != calls {
			t.Errorf("the rerun made %d calls", got-calls)
		}
		if got := l.sources(); !maps.Equal(got, map[string]int{auditlog.SourceDedupe: 90}) {
			t.Errorf("rerun: sources %v", got)
		}
		if !slices.Equal(l.bodies(), first) {
			t.Error("the rerun gave other results")
		}

		for name, change := range map[string]string{"STAGE_LLM_MODEL": "other", "STAGE_TEMPLATE": "Please: {{ row.q }}"} {
			before := l.received()
			l.rerun(questions[:10])
			l.work(10, map[string]string{name: change})
			if got := l.received() - before; got < 10 {
				t.Errorf("with another %s %d calls, want one a row", name, got)
			}
		}

		time.Sleep(61 * time.Minute)
		before := l.received()
		l.rerun(questions[:10])
		l.work(10, nil)
		if got := l.received() - before; got < 10 {
			t.Errorf("after the TTL %d calls, want one a row", got)
		}
	})
}

func TestAStoreThatFailsFailsNoRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 10 * time.Millisecond}, map[string]string{"STAGE_DEDUPE": "stored"})
		l.load("before")
		r := l.start(nil, Options{})
		l.await(1)
		stagetest.Must(t, l.js.DeleteStream(t.Context(), executor.DedupeStream))
		l.load("one", "two", "three")
		l.await(4)
		r.stop()
		l.noneFailed()
		if len(stagetest.Lines(l.logs.String(), "stored replies are unavailable")) == 0 {
			t.Error("the log does not mention the store")
		}
	})
}
