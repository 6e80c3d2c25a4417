package executor

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/metrics"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/version"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// rowWay takes a row through the executor and its one call, except the call itself and the pool.
type rowWay struct {
	executor *Executor
	row      *consumer.Row
	exchange *llm.Exchange
}

func newRowWay(tb testing.TB) *rowWay {
	tb.Helper()
	environ := map[string]string{"STAGE_LLM_MODEL": "m", "STAGE_LLM_API_KEY": "sk-bench-0123456789", "STAGE_LLM_BASE_URL": "http://llm.test/v1", "STAGE_TEMPLATE": "{{ row.q }}"}
	cfg := stagetest.Value(config.Source{Environ: environ}.Load(tb.Context(), config.NeedCalls))(tb)
	servers := stagetest.Value(call.Open(cfg, nil, llmtest.Config{}.Start))(tb)
	tb.Cleanup(servers.Close)
	prompt := stagetest.Value(LoadPrompt(cfg))(tb)
	metrics, usage := metrics.New(version.Build{}, func() status.Snapshot { return status.Snapshot{} }), cost.NewRecorder()
	caller := call.NewCaller(servers, cost.NewLedger(nil, 0), cfg.Name, "run", func(o call.Outcome) {
		usage.Call(o.Event)
		metrics.CallDone(o.Event, o.Target, "")
	})
	e := stagetest.Value(New(cfg, caller, prompt, pool.Config{Size: 1, Retry: pool.DefaultRetry()}, slog.New(slog.DiscardHandler)))(tb)
	return &rowWay{
		executor: e,
		row: &consumer.Row{
			Seq: 1, Taken: time.Now(), MaxBodyBytes: 1 << 20,
			Body: fmt.Appendf(nil, `{"n":1,"q":%q,"text":%q}`, strings.Repeat("q", 190), strings.Repeat("x", 800)),
		},
		exchange: &llm.Exchange{
			Status: 200, Response: []byte(`{"id":"1","choices":[]}`),
			Reply: &llm.Reply{Text: "An answer of some words.", Model: "m", Usage: &llm.Usage{PromptTokens: 20, CompletionTokens: 10, TotalTokens: 30}},
		},
	}
}

func (w *rowWay) walk(tb testing.TB) { //nolint:thelper // Helper itself takes time
	e, a := w.executor, pool.Attempt{Number: 1}
	j := e.prepare(tb.Context(), w.row)
	x := *w.exchange
	x.Request = j.prepared.Body
	stagetest.Value(e.accept(j, &x))(tb)
	call := e.caller.Outcome(0, j.prepared, a, &x, nil)
	e.caller.Count(call)
	j.usage.Add(call.Event.Usage, call.Event.Unpriced())
	e.log.call(j, a, call.Event, nil, j.texts)
	if event := e.event(j, &result{}, auditlog.SourceCall); event.VariablesHash == "" || len(j.body) < len(w.row.Body) {
		tb.Fatal("no result")
	}
}

// The bound is a little over what is needed: prompt, request, result, events, the strings of four hashes, the steps of the
// template. A [sync.Pool] drops what is in it now and then, all the more under the race detector: the least of
// some tries counts.
func TestARowTakesFewAllocationsOfTheExecutor(t *testing.T) {
	w := newRowWay(t)
	const most = 32
	least := math.Inf(1)
	for range 5 {
		least = min(least, testing.AllocsPerRun(100, func() { w.walk(t) }))
	}
	if least > most {
		t.Errorf("%v allocations a row, want at most %d", least, most)
	}
}

func TestALogWithoutDebugCostsNoAllocation(t *testing.T) {
	w := newRowWay(t)
	e, a, reply, j := w.executor, pool.Attempt{Number: 1}, &consumer.Reply{}, &job{row: w.row}
	call := &auditlog.Call{Status: auditlog.CallSuccess}
	if n := testing.AllocsPerRun(100, func() {
		e.log.queued(w.row)
		e.log.started(j, a)
		e.log.call(j, a, call, nil, j.texts)
		e.log.finished(w.row, reply)
	}); n != 0 {
		t.Errorf("%v allocations a row, want none", n)
	}
}

// BenchmarkExecutor measures the executor's work for one row with one call, except the call itself and the pool.
func BenchmarkExecutor(b *testing.B) {
	w := newRowWay(b)
	b.ReportAllocs()
	for b.Loop() {
		w.walk(b)
	}
}
