package stage

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// metered is an LLM that reports its usage, and sums up by model what it reported.
type metered struct {
	mu     sync.Mutex
	usage  func(c llmtest.Call) string // the usage object of a reply; "": it reports none
	status func(c llmtest.Call) int
	prompt map[string]int64
	calls  int
}

func (s *metered) config() llmtest.Config {
	s.prompt = map[string]int64{}
	return llmtest.Config{Latency: 10 * time.Millisecond, Script: func(c llmtest.Call) *llmtest.Step {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls++
		if s.status != nil {
			if status := s.status(c); status != 0 {
				return &llmtest.Step{Status: status}
			}
		}
		usage := s.usage(c)
		if usage != "" {
			s.prompt[c.Model] += int64(len(c.Prompt))
			usage = `,"usage":` + usage
		}
		return &llmtest.Step{Body: fmt.Sprintf(`{"id":"1","model":"%s-2026","choices":[{"finish_reason":"stop","message":{"content":"fine"}}]%s}`, c.Model, usage)}
	}}
}

// tokens reports the length of the prompt as its tokens, half of them cached and a quarter written to the cache, and
// ten tokens of completion.
func tokens(c llmtest.Call) string {
	n := len(c.Prompt)
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":10,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d}}`, n, n+10, n/2, n/4)
}

// TestTotalsMatchWhatTheServersReported: with retries, fallbacks and refused calls among them, tokens and cost of call
// events, row events, run summary, metrics and log are those of the servers' reports and the prices.
func TestTotalsMatchWhatTheServersReported(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		first := &metered{usage: tokens, status: func(c llmtest.Call) int {
			switch {
			case c.N%5 == 1:
				return 429
			case strings.HasPrefix(c.Prompt, "odd") && c.Model == "large":
				return 500
			default:
				return 0
			}
		}}
		l := newLab(t, first.config(), map[string]string{
			"STAGE_PRICES_FILE": stagetest.File(t, "prices.yaml", "large: {input: 2, cached: 1, cache_write: 3, output: 8}\nopenai/small: {input: 1, cache_write: 1, output: 1}\n"),
			"STAGE_FALLBACKS":   "openai:small",
		})
		for i := range 40 {
			l.load([]string{"even question ", "odd question "}[i%2] + strings.Repeat("x", i))
		}
		r := l.work(40, nil)

		large, small := float64(first.prompt["large"]), float64(first.prompt["small"])
		answers := 20.0
		halves, quarters := 0.0, 0.0 // of odd lengths less than half is cached
		for _, q := range l.results() {
			if strings.HasPrefix(q.Q, "even") {
				halves += float64(len(q.Q) / 2)
				quarters += float64(len(q.Q) / 4)
			}
		}
		want := map[string]float64{
			"large": ((large-halves-quarters)*2 + halves*1 + quarters*3 + answers*10*8) / 1e6,
			"small": (small + answers*10) / 1e6,
		}
		got := map[string]float64{}
		var calls, rows float64
		for _, e := range l.events(auditlog.KindCall) {
			if u := e.Call.Usage; u != nil {
				got[e.Call.Model] += *u.CostUSD
				calls += *u.CostUSD
			}
		}
		for _, e := range l.events(auditlog.KindRow) {
			rows += *e.Row.Usage.CostUSD
		}
		runs := l.events(auditlog.KindRun)
		total := runs[len(runs)-1].Run.Summary.Total
		for model, cost := range want {
			if math.Abs(got[model]-cost) > 1e-9 {
				t.Errorf("%s costs %v by the call events, want %v", model, got[model], cost)
			}
		}
		if math.Abs(calls-rows) > 1e-9 || math.Abs(calls-*total.Usage.CostUSD) > 1e-9 || total.Usage.PromptTokens != int64(large+small) {
			t.Errorf("calls %v, rows %v, summary %+v of %v tokens", calls, rows, total.Usage, large+small)
		}
		if int(total.Calls) != first.calls {
			t.Errorf("%d calls in the summary, the server saw %d", total.Calls, first.calls)
		}
		logged := stagetest.Lines(l.logs.String(), `msg="token usage"`)
		if len(logged) != 2 || !strings.Contains(logged[0], "provider=openai model=large calls=") ||
			!strings.Contains(logged[0], fmt.Sprintf("prompt=%v completion=200 total=%v cached=%v cache_write=%v cost_usd=%.6f", large, large+200, halves, quarters, want["large"])) {
			t.Errorf("log:\n%s", strings.Join(logged, "\n"))
		}
		page := r.page()
		for _, metric := range []string{
			fmt.Sprintf(`llm_stage_tokens_total{model="large",provider="openai",type="prompt"} %v`, large),
			fmt.Sprintf(`llm_stage_tokens_total{model="large",provider="openai",type="cached"} %v`, halves),
			fmt.Sprintf(`llm_stage_tokens_total{model="large",provider="openai",type="cache_write"} %v`, quarters),
			`llm_stage_cost_usd_total{model="small",provider="openai"} `,
		} {
			if !strings.Contains(page, metric) {
				t.Errorf("metrics lack %s", metric)
			}
		}
	})
}

// TestUnknownCostStaysUnknown: of three calls one has a cost that the server reports, one has none because its price is
// unknown, and one reports no usage at all.
func TestUnknownCostStaysUnknown(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		llm := &metered{usage: func(c llmtest.Call) string {
			switch c.Prompt {
			case "reported":
				return `{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"cost":0.25}`
			case "silent":
				return ""
			default:
				return `{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}`
			}
		}}
		l := newLab(t, llm.config(), map[string]string{"STAGE_LLM_PROVIDER": "openrouter"})
		l.load("reported", "unpriced", "silent")
		r := l.work(3, nil)
		rows := l.events(auditlog.KindRow)
		var costs []string
		for _, q := range []int{1, 2, 3} {
			for _, e := range rows {
				if int(e.Row.Sequence) == q {
					costs = append(costs, cost.Format(e.Row.Usage))
				}
			}
		}
		if strings.Join(costs, " ") != "0.250000 unknown unknown" {
			t.Errorf("rows cost %v", costs)
		}
		if all := r.Usage.All(); all.Cost() != "at least 0.250000, unknown of 2 calls" || all.Usage.CostUSD != nil {
			t.Errorf("the total is %q and %v in the summary", all.Cost(), all.Usage.CostUSD)
		}
		if got := stagetest.Lines(l.logs.String(), `msg="token usage"`); len(got) != 1 || !strings.Contains(got[0], `cost_usd="at least 0.250000, unknown of 2 calls"`) {
			t.Errorf("log: %v", got)
		}
	})
}

// TestARetryOfAReplyWithoutUsageHasAnUnknownCost: the first reply is empty and reports no usage, and may be billed.
func TestARetryOfAReplyWithoutUsageHasAnUnknownCost(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Millisecond, Script: func(c llmtest.Call) *llmtest.Step {
			if c.N == 0 {
				return &llmtest.Step{Body: `{"choices":[{"finish_reason":"stop","message":{"content":""}}]}`}
			}
			return &llmtest.Step{Body: `{"choices":[{"finish_reason":"stop","message":{"content":"fine"}}],"usage":{"prompt_tokens":100,"completion_tokens":50}}`}
		}}, map[string]string{"STAGE_PRICES_FILE": stagetest.File(t, "prices.yaml", "large: {input: 3, output: 15}\n")})
		l.load("a row")
		r := l.work(1, nil)
		row := l.events(auditlog.KindRow)[0].Row
		runs := l.events(auditlog.KindRun)
		run := runs[len(runs)-1].Run.Summary
		if row.Attempts != 2 || row.Usage.CostUSD != nil || run.Total.Usage.CostUSD != nil || run.Usage[0].Usage.CostUSD != nil || row.Usage.TotalTokens != 150 {
			t.Errorf("%d attempts; the row costs %s, the run %s, its model %s; want unknown", row.Attempts,
				cost.Format(row.Usage), cost.Format(run.Total.Usage), cost.Format(run.Usage[0].Usage))
		}
		if status := status.NewUsageReport(r.Usage.All()); status.CostUSD != nil || status.KnownCostUSD != 0.00105 || status.UnpricedCalls != 1 {
			t.Errorf("status: %+v", status)
		}
	})
}

// TestARowsOwnModelNeedsAPriceUnderACeiling: the ceiling could not be enforced. Without one, its cost is just not known.
func TestARowsOwnModelNeedsAPriceUnderACeiling(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		server := &metered{usage: tokens}
		l := newLab(t, server.config(), map[string]string{
			"STAGE_PRICES_FILE": stagetest.File(t, "prices.yaml", "large: {input: 1, output: 1}\nopenai/other: {input: 1, output: 1}"), "STAGE_DEDUPE": "inflight",
		})
		load := func() {
			for _, model := range []string{"", "other", "secret", "secret"} {
				l.publish(&nats.Msg{Data: []byte(`{"q":"one"}`), Header: nats.Header{streams.HeaderModel: {model}}})
			}
		}
		load()
		l.work(4, map[string]string{"STAGE_MAX_COST_USD": "5"})
		if server.calls != 2 {
			t.Errorf("%d calls, want 2", server.calls)
		}
		for i, r := range l.results() {
			switch {
			case i < 2 && r.Error != nil:
				t.Errorf("row %d: %+v", i+1, r.Error)
			case i >= 2 && (r.Error == nil || r.Error.Reason != "api_call_failed" || !strings.Contains(r.Error.Text, `the model "secret" of the row has no price`) ||
				!strings.Contains(r.Error.Text, "add openai/secret to STAGE_PRICES_FILE")):
				t.Errorf("row %d: %+v, want an error with what to add", i+1, r.Error)
			}
		}
		load()
		l.work(8, nil)
		for i, r := range l.results()[4:] {
			if r.Error != nil {
				t.Errorf("without a ceiling, row %d: %+v", i+1, r.Error)
			}
		}
	})
}

// TestTheCeilingPausesAndCountsEarlierRuns: a call costs 0.10. The first run has a ceiling of 0.35: four calls reach
// it. The second, with 0.55, may make two more. The third begins at its ceiling and makes none.
func TestTheCeilingPausesAndCountsEarlierRuns(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		llm := &metered{usage: func(llmtest.Call) string {
			return `{"prompt_tokens":100000,"completion_tokens":0,"total_tokens":100000}`
		}}
		l := newLab(t, llm.config(), map[string]string{
			"STAGE_PRICES_FILE": stagetest.File(t, "prices.yaml", "large: {input: 1, output: 1}"), "STAGE_POOL_SIZE": "1",
		})
		l.load(times("q", 20)...)
		for _, run := range []struct {
			ceiling string
			exit    bool
			calls   int
		}{{"0.35", false, 4}, {"0.55", true, 6}, {"0.55", false, 6}} {
			r := l.start(map[string]string{"STAGE_MAX_COST_USD": run.ceiling, "STAGE_ON_FATAL": "fail"}, Options{ExitOnFatal: run.exit})
			if run.exit {
				if err := <-r.done; !isFatal(err) || !strings.HasPrefix(err.Error(), "cost ceiling reached: the known cost, 0.600000 USD") {
					t.Errorf("run: %v", err)
				}
			} else {
				time.Sleep(5 * time.Minute) // probes, which make no call
				if why := r.Status().Pool.PauseReason; why != hold.CostCeiling {
					t.Errorf("paused for %v, want %s", why, hold.CostCeiling)
				}
				if ok, reason := r.ready(); ok || !strings.Contains(reason, "cost ceiling reached") {
					t.Errorf("ready %v: %q", ok, reason)
				}
				r.stop()
			}
			if llm.calls != run.calls {
				t.Errorf("%d calls after the run with a ceiling of %s, want %d", llm.calls, run.ceiling, run.calls)
			}
		}
		l.work(20, map[string]string{"STAGE_MAX_COST_USD": "100"})
		l.noneFailed()
	})
}
