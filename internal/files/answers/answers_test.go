package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
)

// site is an LLM, and what is common to the columns that call it.
type site struct {
	t        *testing.T
	llm      *llmtest.Server
	settings []string
}

func newSite(t *testing.T, script func(llmtest.Call) *llmtest.Step, settings ...string) *site {
	t.Helper()
	llm, err := llmtest.New(llmtest.Config{Script: script})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(llm)
	t.Cleanup(server.Close)
	return &site{t, llm, append([]string{
		"STAGE_LLM_PROVIDER", "openai", "STAGE_LLM_BASE_URL", server.URL + "/v1", "STAGE_LLM_API_KEY", "k",
		"STAGE_TEMPLATE", "Say {{ row.n }}", "STAGE_LOG_LEVEL", "error", "STAGE_RETRY_BASE_DELAY", "1ms",
		"STAGE_PRICES_FILE", stagetest.File(t, "prices.yaml", "a: {input: 1000000, output: 1000000}\nb: {input: 1000000, output: 1000000}\n"), // a token costs 1 USD
	}, settings...)}
}

// config returns a comparison of models on so many rows.
func (s *site) config(rows int, models ...string) Config {
	c := Config{Input: "rows.jsonl", Logger: slog.New(slog.DiscardHandler)}
	for n := range rows {
		c.Rows = append(c.Rows, rowfile.Row{Line: int64(n + 1), Body: fmt.Appendf(nil, `{"n":%d}`, n)})
	}
	for _, model := range models {
		c.Columns = append(c.Columns, Column{Name: model, Config: stagetest.ConfigOfCalls(s.t, append(s.settings, "STAGE_LLM_MODEL", model)...)})
	}
	return c
}

// statuses are the statuses of a column's answers, in the order of the rows.
func statuses(r *Report, column int) string {
	var all []string
	for i := range r.Rows {
		all = append(all, r.Rows[i].Answers[column].Status)
	}
	return strings.Join(all, " ")
}

func TestOneColumnThatCannotBeCalledDoesNotEndTheOthers(t *testing.T) {
	s := newSite(t, func(c llmtest.Call) *llmtest.Step {
		if c.Model == "b" {
			return &llmtest.Step{Status: http.StatusUnauthorized}
		}
		return nil
	})
	r, err := Run(t.Context(), t.Context(), s.config(3, "a", "b"))
	if _, ok := errors.AsType[*stage.FatalError](err); !ok || !strings.HasPrefix(err.Error(), "b: ") {
		t.Errorf("got %v, want the fatal error of b", err)
	}
	if got := statuses(r, 0); got != "answered answered answered" {
		t.Errorf("a: %s", got)
	}
	if b := r.Columns[1]; b.Answered != 0 || b.Missing != 3 || b.Error == nil || *r.Rows[0].Answers[1].Reason != "fatal" || r.Stopped == nil {
		t.Errorf("b: %+v, %+v", b, r.Rows[0].Answers[1])
	}
	if r.Agreement.All.Rows != 0 || r.Rows[0].Agree != nil {
		t.Errorf("agreement on rows that one column has not answered: %+v", r.Agreement.All)
	}
}

// Both columns together spend what one job would: a call costs 12 USD, and one is in flight.
func TestTheCeilingIsThatOfAllColumns(t *testing.T) {
	s := newSite(t, nil, "STAGE_MAX_COST_USD", "20", "STAGE_POOL_SIZE", "1")
	r, err := Run(t.Context(), t.Context(), s.config(6, "a", "b"))
	if !errors.Is(err, cost.ErrCeiling) {
		t.Fatalf("got %v, want the ceiling", err)
	}
	if calls := r.Columns[0].Calls + r.Columns[1].Calls; calls != 2 || s.llm.Stats().Received != 2 {
		t.Errorf("%d calls are shown, %d were made, want 2", calls, s.llm.Stats().Received)
	}
	for i := range r.Rows {
		for _, a := range r.Rows[i].Answers {
			if a.Status == StatusNotCalled && (*a.Reason != "cost_ceiling" || a.Calls != 0) || a.Status != StatusNotCalled && a.Status != StatusAnswered {
				t.Errorf("row %d: %+v", i, a)
			}
		}
	}
	if n := r.Columns[0].Missing + r.Columns[1].Missing; n != 10 {
		t.Errorf("%d answers are missing, want 10", n)
	}
}

// An interrupt lets the call in flight end. What was answered is shown, what was not called says
// so.
func TestAnInterruptShowsWhatWasAnswered(t *testing.T) {
	soft, interrupt := context.WithCancelCause(t.Context())
	defer interrupt(nil)
	s := newSite(t, func(c llmtest.Call) *llmtest.Step {
		if strings.HasSuffix(c.Prompt, " 1") { // in flight
			interrupt(&stopping.InterruptError{Signal: syscall.SIGINT})
		}
		return nil
	}, "STAGE_POOL_SIZE", "1")
	r, err := Run(soft, t.Context(), s.config(8, "a"))
	if _, ok := errors.AsType[*stopping.InterruptError](err); !ok {
		t.Fatalf("got %v, want the interrupt", err)
	}
	if got := statuses(r, 0); !strings.HasPrefix(got, "answered answered") || !strings.HasSuffix(got, "not_called") {
		t.Error(got)
	}
	if last := r.Rows[7].Answers[0]; *last.Reason != "interrupted" || last.Prompt == nil || *last.Prompt != "Say 7" {
		t.Errorf("%+v", last)
	}
}

// A reply against the schema is counted and paid for, and is no answer.
func TestRepliesAgainstTheSchemaAreCounted(t *testing.T) {
	var once sync.Once
	s := newSite(t, func(llmtest.Call) (step *llmtest.Step) {
		once.Do(func() {
			step = &llmtest.Step{Body: `{"model":"a","choices":[{"message":{"content":"no JSON"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`}
		})
		return step
	}, "STAGE_RESPONSE_SCHEMA_FILE", stagetest.File(t, "schema.json", `{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}`))
	r, err := Run(t.Context(), t.Context(), s.config(1, "a"))
	if err != nil {
		t.Fatal(err)
	}
	a := r.Rows[0].Answers[0]
	if a.Status != StatusAnswered || a.Calls != 2 || a.SchemaFailures != 1 || r.Columns[0].SchemaFailures != 1 || a.value.members == nil {
		t.Errorf("%+v", a)
	}
	if *a.CostUSD != float64(a.TotalTokens) || a.TotalTokens <= 3 || *r.Columns[0].PaidUSD != *a.CostUSD {
		t.Errorf("%g USD for %d tokens, paid %g", *a.CostUSD, a.TotalTokens, *r.Columns[0].PaidUSD)
	}
}

// Columns take turns at the slots of one pool, whatever the number of columns.
func TestColumnsShareTheSlotsOfThePool(t *testing.T) {
	var mu sync.Mutex
	var inFlight, most int
	count := func(more int) {
		mu.Lock()
		defer mu.Unlock()
		inFlight += more
		most = max(most, inFlight)
	}
	s := newSite(t, func(llmtest.Call) *llmtest.Step { return &llmtest.Step{Delay: 20 * time.Millisecond} }, "STAGE_POOL_SIZE", "2")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		count(1)
		s.llm.ServeHTTP(w, req)
		count(-1)
	}))
	defer server.Close()
	s.settings = append(s.settings, "STAGE_LLM_BASE_URL", server.URL+"/v1")
	r, err := Run(t.Context(), t.Context(), s.config(20, "a", "b"))
	if err != nil || r.Columns[0].Answered != 20 || r.Columns[1].Answered != 20 {
		t.Fatalf("%v: %+v", err, r)
	}
	if most > 2 {
		t.Errorf("%d calls in flight, want at most 2", most)
	}
}

func TestLimitsOfAMinuteAreDivided(t *testing.T) {
	s := newSite(t, nil, "STAGE_LLM_RPM", "10", "STAGE_LLM_TPM", "2", "STAGE_LANE", "batch", "STAGE_BUDGET", "shared")
	cfg := s.config(1, "a").Columns[0].Config
	defaults := stagetest.Config(t)
	own := tuned(cfg, defaults, 2, 3)
	if own.LLM.RPM != 3 || own.LLM.TPM != 1 || own.LaneOn() || own.Budget.Name != "" || own.Rows.Dedupe != "stored" || own.Name != "try-3" {
		t.Errorf("%d rpm, %d tpm, lane %t, %+v, %s", own.LLM.RPM, own.LLM.TPM, own.LaneOn(), own.Budget, own.Rows.Dedupe)
	}
	if cfg.LLM.RPM != 10 || !cfg.LaneOn() {
		t.Error("the settings of the column have changed")
	}
}

// What a model, a row or a name says never becomes a part of the page.
func TestThePageEscapesEverything(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>` + "\u202e"
	r := rowsOf([]string{`{"` + `<b>m\">` + `":"<script>"}`, `{"x":"<img src=http://evil>"}`})
	text := evil
	r.Input, r.Expect, r.Stopped = evil, &text, &text
	for i := range r.Columns {
		r.Columns[i] = ColumnReport{Name: evil, Provider: evil, Model: evil + "2", Error: &text, Expected: &Share{}}
	}
	failed := Answer{Status: StatusFailed, Reason: &text, Error: &text, Prompt: &text}
	r.Rows = append(r.Rows, RowReport{Row: []byte(evil), Expected: []byte(`"<script>"`), Answers: []Answer{failed, {Status: StatusAnswered, value: value{text: evil, plain: evil}, Prompt: &text}}})
	var page strings.Builder
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	body := page.String()[strings.Index(page.String(), "</style>"):]
	for _, bad := range []string{"<script", "<img", "<b>", "\u202e", "onerror=alert(2)>\""} {
		if strings.Contains(body, bad) {
			t.Errorf("the page has %q:\n%s", bad, body)
		}
	}
	if n := strings.Count(body, "&lt;script&gt;"); n < 10 {
		t.Errorf("the texts are there %d times", n)
	}
	if !strings.Contains(page.String(), `content="default-src 'none'; style-src 'unsafe-inline'"`) {
		t.Error("the page does not forbid scripts")
	}
}
