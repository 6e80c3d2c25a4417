package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// busyMetrics are metrics on which each method was called.
func busyMetrics() *Metrics {
	m := New(version.Build{Version: "v1.2.3", GoVersion: "go1.26.0"}, func() status.Snapshot {
		s := status.Snapshot{
			Pool: pool.Stats{
				InFlight: 7, CurrentDelay: 50 * time.Millisecond, ThrottleTime: 90 * time.Second,
				Pause: pool.Pause{Kind: pool.FatalError, Err: &llm.Error{Status: http.StatusPaymentRequired, Err: errors.New("no credit")}},
			},
			Partitions: []consumer.Status{
				{Partition: 0, Role: consumer.Owner, Window: 12, Buffered: 5, BufferedBytes: 4096, HeadSince: time.Now().Add(-3 * time.Second), Pending: 100},
				{Partition: 1, Role: consumer.Standby},
				{
					Partition: 2, Role: consumer.Owner, Window: 3, HeadSince: time.Now().Add(-time.Hour), Ahead: 60000, SetAside: 900, KeysWaiting: 2,
					WaitedFor: 17, WaitedForKey: "north", WaitedForSince: time.Now().Add(-90 * time.Second),
				},
			},
			Process: status.Process{Pauses: []status.Wish{{Partition: 1}, {Partition: 2}}}, // 1 is another replica's
			Budgets: []status.Budget{
				{Name: "team", Provider: "openai", Mode: status.BudgetMember, Members: 12, Share: .125, Rate: 19.5, Leader: "run7"},
				{Name: "team", Provider: "anthropic", Mode: status.BudgetAlone, Members: 1, Share: 1, Rate: 5},
			},
			Lanes: []status.Lane{
				{
					Batches: []status.LaneBatch{
						{State: status.LaneRunning, Since: time.Now().Add(-2 * time.Hour)},
						{State: status.LaneRunning, Since: time.Now().Add(-time.Hour)},
						{State: status.LaneIntent, Since: time.Now()},
					},
					Rows: map[status.LaneState]int{status.LaneSubmitted: 20000, status.LaneGathering: 17}, Adopted: 1,
				},
				{Partition: 1, Paused: "no credit", Batches: []status.LaneBatch{{State: status.LaneLooking, Since: time.Now()}}, Rows: map[status.LaneState]int{status.LaneSubmitted: 5}, Lapsed: 300},
			},
		}
		s.Collect(time.Now())
		return s
	})
	some, cost := int64(3), 0.25
	m.CallDone(&auditlog.Call{
		Provider: "openai", Model: "gpt-5", Status: auditlog.CallSuccess, Latency: 1200 * time.Millisecond,
		Usage: &auditlog.Usage{
			PromptTokens: 10, CompletionTokens: 20, CachedTokens: &some, CacheWriteTokens: new(int64(5)), CacheWrite1hTokens: &some, ReasoningTokens: &some, CostUSD: &cost,
		},
	}, "llm.test:8080/v1/chat/completions", "")
	m.CallDone(&auditlog.Call{Provider: "openai", Model: "gpt-5", Status: auditlog.CallCapacityRetry, Latency: 20 * time.Millisecond}, "llm.test:8080/v1/chat/completions", "429")
	m.RowEmitted(0, false, 2*time.Second, 4*time.Millisecond)
	m.RowEmitted(0, true, 3*time.Hour, time.Second)
	m.TermEnded(1, "fenced")
	for _, kind := range []auditlog.Kind{auditlog.KindCall, auditlog.KindRow, auditlog.KindRun} {
		m.AuditEvent(kind)
	}
	return m
}

func TestMetricsReadAsDocumented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock stands still
		w := httptest.NewRecorder()
		busyMetrics().Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			t.Fatalf("got status %d: %s", w.Code, w.Body)
		}
		var ours strings.Builder
		for line := range strings.Lines(w.Body.String()) {
			if strings.Contains(line, "llm_stage_") {
				ours.WriteString(line)
			}
		}
		golden.Check(t, filepath.Join("testdata", "metrics.txt"), ours.String())
	})
}

func TestMetricsFollowTheConventions(t *testing.T) {
	problems := stagetest.Value(testutil.GatherAndLint(busyMetrics().registry))(t)
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "llm_stage_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestLabelValuesAreBounded(t *testing.T) {
	m := New(version.Build{}, func() status.Snapshot { return status.Snapshot{} })
	for i := range 10 * modelsMax {
		m.CallDone(&auditlog.Call{Provider: fmt.Sprintf("p%d", i), Model: fmt.Sprintf("m%d", i), Status: auditlog.CallFailure}, "", "")
	}
	for i := range modelsMax {
		m.CallDone(&auditlog.Call{Provider: "p0", Model: fmt.Sprintf("m%d", i), Status: auditlog.CallFailure}, "", "")
	}
	// The first models have their own name at their provider and at p0, all others share one.
	if got, most := testutil.CollectAndCount(m.calls), 2*modelsMax+1; got > most {
		t.Errorf("got %d series, want at most %d", got, most)
	}
	if got := testutil.ToFloat64(m.calls.WithLabelValues(labelOther, labelOther, "failure")); got != 9*modelsMax {
		t.Errorf("got %v calls of other models, want %d", got, 9*modelsMax)
	}
}

// A row names its model in a header, which may hold any bytes, and the Prometheus library
// panics for some of them.
func TestAModelOfAnyBytesIsCounted(t *testing.T) {
	m := New(version.Build{}, func() status.Snapshot { return status.Snapshot{} })
	for _, model := range []string{"\xff", "a\xc3", strings.Repeat("m", labelBytesMax+1)} {
		m.CallDone(&auditlog.Call{Provider: "openai", Model: model, Status: auditlog.CallSuccess}, "", "")
	}
	if got := testutil.ToFloat64(m.calls.WithLabelValues("openai", labelOther, "success")); got != 3 {
		t.Errorf("got %v calls of other models, want 3", got)
	}
}

func TestEachModelBeyondTheBoundCountsAsOther(t *testing.T) {
	m := New(version.Build{}, func() status.Snapshot { return status.Snapshot{} })
	for range 2 {
		for i := range modelsMax + 3 {
			m.CallDone(&auditlog.Call{Provider: "openai", Model: fmt.Sprint("m", i), Status: auditlog.CallSuccess}, "", "")
		}
	}
	if got := testutil.CollectAndCount(m.calls); got != modelsMax+1 {
		t.Errorf("got %d series, want %d", got, modelsMax+1)
	}
	if got := testutil.ToFloat64(m.calls.WithLabelValues("openai", labelOther, "success")); got != 6 {
		t.Errorf("got %v other calls, want 6", got)
	}
	if got := len(*m.callSeries.known.Load()); got != modelsMax {
		t.Errorf("%d kinds of calls are kept, want %d", got, modelsMax)
	}
}

func TestACallAndARowAreCountedWithoutAllocation(t *testing.T) {
	m := New(version.Build{}, func() status.Snapshot { return status.Snapshot{} })
	u := cost.NewRecorder()
	some, cost := int64(3), 0.25
	call := &auditlog.Call{
		Provider: "openai", Model: "gpt-5", Status: auditlog.CallSuccess, Latency: time.Second,
		Usage: &auditlog.Usage{
			PromptTokens: 10, CompletionTokens: 20, CachedTokens: &some, CacheWriteTokens: new(int64(5)), CacheWrite1hTokens: &some, ReasoningTokens: &some, CostUSD: &cost,
		},
	}
	if got := testing.AllocsPerRun(100, func() {
		u.Call(call)
		m.CallDone(call, "llm.test/v1", "")
		m.RowEmitted(0, false, time.Second, time.Millisecond)
		m.AuditEvent(auditlog.KindCall)
	}); got != 0 {
		t.Errorf("got %v allocations, want none", got)
	}
	if sum := u.All().Usage; *sum.CachedTokens != 3*101 || *sum.CacheWriteTokens != 5*101 || *sum.CacheWrite1hTokens != 3*101 || some != 3 {
		t.Errorf("got sums %+v; the call has %d", sum, some)
	}
}

func BenchmarkCallDone(b *testing.B) {
	m := New(version.Build{}, func() status.Snapshot { return status.Snapshot{} })
	call := &auditlog.Call{Provider: "openai", Model: "gpt-5", Status: auditlog.CallSuccess, Latency: time.Second, Usage: &auditlog.Usage{PromptTokens: 1, CompletionTokens: 1}}
	b.ReportAllocs()
	for b.Loop() {
		m.CallDone(call, "llm.test/v1", "")
	}
}
