package answers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/files/preview"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
)

// Report is what a comparison found, as -o json prints it.
type Report struct {
	Input string `json:"input"`
	// Seed is the seed of the sample, or null if the rows are the first of the file.
	Seed *uint64 `json:"seed"`
	// Expect names the member of the rows that holds the known answer, or is null.
	Expect *string `json:"expect"`
	// Stopped is why some answers are missing, or null.
	Stopped *string        `json:"stopped"`
	Columns []ColumnReport `json:"columns"`
	// Agreement is null with one column.
	Agreement *Agreement  `json:"agreement"`
	Rows      []RowReport `json:"rows"`
}

// ColumnReport sums up the answers of a column.
type ColumnReport struct {
	Name     string            `json:"name"`
	Settings map[string]string `json:"settings"`
	Provider string            `json:"provider"`
	Model    string            `json:"model"`
	// Answered, Failed and Missing add up to the rows. A row without an answer was not
	// called, or its call was cut off.
	Answered int `json:"answered"`
	Failed   int `json:"failed"`
	Missing  int `json:"missing"`
	// Stored counts the answers for which no call was made here: an equal request was
	// answered before.
	Stored          int `json:"stored"`
	Calls           int `json:"calls"`
	CapacityRetries int `json:"capacity_retries"` // of Calls
	SchemaFailures  int `json:"schema_failures"`  // of Calls: replies against the schema
	// Expected is how many answers were as expected. It is null without --expect.
	Expected *Share `json:"expected"`
	Used
	// PaidUSD is the part of CostUSD that was paid for here, or null if it is unknown.
	PaidUSD *float64 `json:"paid_usd"`
	// Latency is of the calls that answered a row, or null if there is none.
	Latency *Latency `json:"latency_ms"`
	// Error is what ended the column before all rows were answered, or null.
	Error *string `json:"error"`
}

// Used is what answers took, retries included. For a stored answer it is what the answer
// took when it was made.
type Used struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
	// CostUSD is null if the cost of a part is unknown.
	CostUSD *float64 `json:"cost_usd"`
}

// Latency is how long calls took, in milliseconds.
type Latency struct {
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// Share is how many of so many rows have equal answers.
type Share struct {
	Equal int `json:"equal"`
	Rows  int `json:"rows"`
}

// Agreement is how many rows have equal answers. A row counts if all columns that are
// compared have answered it.
type Agreement struct {
	All   Share  `json:"all"`
	Pairs []Pair `json:"pairs"`
	// Members compares each member of answers that are objects, over all columns. They are
	// in the order of their names, at most [membersMax] of them.
	Members []Member `json:"members"`
}

// Pair is the agreement of two columns, by their index from 0.
type Pair struct {
	Columns [2]int `json:"columns"`
	Share
}

// Member is the agreement on a top-level member of the answers.
type Member struct {
	Name string `json:"name"`
	Share
}

// RowReport is a row with its answers, one for each column.
type RowReport struct {
	Line int64 `json:"line"`
	// Row is the row if it is JSON, or else a string: its text or, for a row with a Fault,
	// the problem and the beginning.
	Row json.RawMessage `json:"row"`
	// Expected is the known answer, or null.
	Expected json.RawMessage `json:"expected"`
	// Agree says whether all columns have the same answer. It is null if one has none.
	Agree   *bool    `json:"agree"`
	Answers []Answer `json:"answers"`
}

// The values of [Answer.Status].
const (
	StatusAnswered  = "answered"
	StatusFailed    = "failed"
	StatusNotCalled = "not_called"
	StatusCutOff    = "cut_off" // it was called, and the stage ended before there was an answer
)

// Answer is the answer of a column to a row.
type Answer struct {
	Status string `json:"status"`
	// Answer is a string, or with a response schema any JSON value. It is null if the row has
	// no answer.
	Answer json.RawMessage `json:"answer"`
	// ToolCalls are the calls of tools, or null.
	ToolCalls json.RawMessage `json:"tool_calls"`
	// Expected says whether it is the known answer. It is null if no answer is known, or the
	// row has no answer.
	Expected *bool `json:"expected"`
	// Reason and Error say why there is no answer. Both are null if there is one.
	Reason *string `json:"reason"`
	Error  *string `json:"error"`
	// Stored says that no call was made here: an equal request was answered before.
	Stored         bool `json:"stored"`
	Calls          int  `json:"calls"`
	SchemaFailures int  `json:"schema_failures"`
	// Model is the one that answered, or null.
	Model *string `json:"model"`
	Used
	// LatencyMS is the latency of the call that answered, or null.
	LatencyMS *float64 `json:"latency_ms"`
	// Prompt is the rendered prompt, or null if it can't be rendered.
	Prompt *string `json:"prompt"`

	paid  *auditlog.UsageSum // of the calls that were made here
	value value              // for comparisons
}

// MissingError says how many answers are missing because their rows failed.
type MissingError struct{ Failed, All int }

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%d of %s failed: each shows why", e.Failed, terminal.Plural(e.All, "answer"))
}

// report reads what the stages have stored. The error is why answers are missing.
func (r *run) report(soft, hard context.Context) (*Report, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hard), readTimeout)
	defer cancel()
	report := &Report{Input: r.Input, Seed: r.Seed}
	if r.Expect != nil {
		report.Expect = new(r.Expect.String())
	}
	for _, row := range r.Rows {
		shown := RowReport{Line: row.Line, Row: row.Body, Answers: make([]Answer, len(r.sides))}
		if row.Fault != nil || !json.Valid(row.Body) {
			shown.Row = jsonbytes.AppendString(nil, string(row.Body))
		}
		shown.Expected = r.Expect.of(row)
		report.Rows = append(report.Rows, shown)
	}
	var broken error
	for i, side := range r.sides {
		results := make(map[uint64]stored.Result)
		if err := r.eachResult(ctx, side, false, func(result stored.Result) bool {
			results[result.Seq] = result
			return true
		}); err != nil {
			broken = cmp.Or(broken, err)
		}
		for n, row := range r.Rows {
			seq := uint64(n + 1) //nolint:gosec // small
			result, found := results[seq]
			report.Rows[n].Answers[i] = side.answer(ctx, row, side.calls[seq], result, found, r.side.Ledger)
		}
	}
	report.sumUp(r)
	failed, missing := 0, 0
	for i := range report.Columns {
		failed += report.Columns[i].Failed
		missing += report.Columns[i].Missing
	}
	var err error
	if missing > 0 {
		err = cmp.Or(r.why(soft, hard), broken)
	}
	if err != nil {
		report.Stopped = new(terminal.OneLine(err.Error()))
	} else if failed > 0 {
		err = &MissingError{Failed: failed, All: len(r.Rows) * len(r.sides)}
	}
	return report, err
}

// why returns why answers are missing, or nil if nothing is known of it.
func (r *run) why(soft, hard context.Context) error {
	if hard.Err() != nil {
		return context.Cause(hard)
	}
	for _, side := range r.sides {
		if errors.Is(side.ended, cost.ErrCeiling) { // the columns share it
			return side.ended
		}
		if side.ended != nil {
			return fmt.Errorf("%s: %w", side.Name, side.ended)
		}
	}
	return context.Cause(soft)
}

// answer reads the answer to a row. found says that there is a result.
func (c *column) answer(ctx context.Context, row rowfile.Row, calls []call.Outcome, result stored.Result, found bool, ledger *cost.Ledger) Answer {
	a := Answer{Calls: len(calls), paid: &auditlog.UsageSum{}}
	if prompt, err := preview.Prompt(ctx, c.prompt, row); err == nil {
		a.Prompt = &prompt
	}
	var latency time.Duration
	for _, o := range calls {
		a.paid.Add(o.Event.Usage, o.Event.Unpriced())
		if o.Err != nil && o.Err.Reason == llm.ReasonSchemaValidationFailed {
			a.SchemaFailures++
		}
		latency = o.Event.Latency
	}
	usage := a.paid.Total()
	switch {
	case !found && len(calls) == 0:
		a.Status = StatusNotCalled
	case !found:
		a.Status = StatusCutOff
	case result.Failed:
		a.Status = StatusFailed
		a.fail(jsonbytes.Find(result.Body, c.cfg.Prompt.ResponseField+"_error"))
	default:
		a.Status, a.Stored = StatusAnswered, len(calls) == 0
		a.read(result.Body, c.cfg.Prompt.ResponseField)
		if a.Stored {
			usage = c.storedUsage(result.Body, ledger)
		} else {
			a.LatencyMS = new(terminal.Milliseconds(latency))
		}
	}
	a.Used = usedOf(usage, a.paid.Unpriced)
	if !found {
		a.Reason, a.Error = c.whyNot()
	}
	return a
}

// whyNot returns why a row has no result: a word for programs, and a text for people.
func (c *column) whyNot() (reason, text *string) {
	switch {
	case c.ended == nil:
		return new("interrupted"), new("the command was stopped before")
	case errors.Is(c.ended, cost.ErrCeiling):
		return new("cost_ceiling"), new("STAGE_MAX_COST_USD is reached")
	}
	return new("fatal"), new(terminal.OneLine(c.ended.Error()))
}

func (a *Answer) fail(object []byte) {
	var failure struct{ Reason, Error string }
	if err := json.Unmarshal(object, &failure); err != nil {
		failure.Error = "the result does not say why"
	}
	a.Reason, a.Error = &failure.Reason, &failure.Error
}

// read reads the answer in the result of a row.
func (a *Answer) read(body []byte, field string) {
	a.Answer = slices.Clone(jsonbytes.Find(body, field))
	if calls := jsonbytes.Find(body, field+"_tool_calls"); len(calls) > 0 && calls[0] == '[' {
		a.ToolCalls = slices.Clone(calls)
	}
	var model string
	if json.Unmarshal(jsonbytes.Find(body, field+"_model"), &model) == nil && model != "" {
		a.Model = &model
	}
	a.value = newValue(a.Answer, a.ToolCalls)
}

// storedUsage returns what a stored answer used when it was made, at today's price.
func (c *column) storedUsage(body []byte, ledger *cost.Ledger) *auditlog.Usage {
	var u *llm.Usage
	if json.Unmarshal(jsonbytes.Find(body, c.cfg.Prompt.ResponseField+"_usage"), &u) != nil || u == nil {
		return nil
	}
	call := &auditlog.Call{Provider: c.cfg.LLM.Provider, Model: c.cfg.LLM.Model, Usage: &auditlog.Usage{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, TotalTokens: u.TotalTokens,
		CachedTokens: u.CachedTokens, CacheWriteTokens: u.CacheWriteTokens, CacheWrite1hTokens: u.CacheWrite1hTokens,
		ReasoningTokens: u.ReasoningTokens, CostUSD: u.Cost,
	}}
	ledger.Price(call, "")
	return call.Usage
}

// usedOf returns what was used. If no usage was reported, the cost is 0, unless unpriced
// says that a call may have cost something.
func usedOf(u *auditlog.Usage, unpriced bool) Used {
	switch {
	case u != nil:
		return Used{u.PromptTokens, u.CompletionTokens, u.TotalTokens, u.CostUSD}
	case unpriced:
		return Used{}
	}
	return Used{CostUSD: new(float64)}
}

func (u *Used) add(other Used) {
	u.PromptTokens += other.PromptTokens
	u.CompletionTokens += other.CompletionTokens
	u.TotalTokens += other.TotalTokens
	u.CostUSD = plus(u.CostUSD, other.CostUSD)
}

// plus returns the sum of two costs, or nil if one of them is unknown.
func plus(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

// sumUp fills in the columns and their agreement.
func (r *Report) sumUp(from *run) {
	for i, side := range from.sides {
		column := ColumnReport{Name: side.Name, Settings: side.Settings, Provider: side.cfg.LLM.Provider, Model: side.cfg.LLM.Model, Used: Used{CostUSD: new(float64)}, PaidUSD: new(float64)}
		if column.Settings == nil {
			column.Settings = map[string]string{}
		}
		if side.ended != nil {
			column.Error = new(terminal.OneLine(side.ended.Error()))
		}
		if from.Expect != nil {
			column.Expected = &Share{}
		}
		var latencies []float64
		for n := range r.Rows {
			row := &r.Rows[n]
			a := &row.Answers[i]
			a.compare(from.Expect, row.Expected, column.Expected)
			column.add(a)
			if a.LatencyMS != nil {
				latencies = append(latencies, *a.LatencyMS)
			}
			for _, o := range side.calls[uint64(n+1)] { //nolint:gosec // small
				if o.Event.Status == auditlog.CallCapacityRetry {
					column.CapacityRetries++
				}
			}
		}
		if slices.Sort(latencies); len(latencies) > 0 {
			column.Latency = &Latency{Median: latencies[len(latencies)/2], Max: latencies[len(latencies)-1]}
		}
		r.Columns = append(r.Columns, column)
	}
	if len(r.Columns) > 1 {
		r.agree()
	}
}

func (c *ColumnReport) add(a *Answer) {
	switch a.Status {
	case StatusAnswered:
		c.Answered++
	case StatusFailed:
		c.Failed++
	default:
		c.Missing++
	}
	if a.Stored {
		c.Stored++
	}
	c.Calls += a.Calls
	c.SchemaFailures += a.SchemaFailures
	c.Used.add(a.Used)
	c.PaidUSD = plus(c.PaidUSD, usedOf(a.paid.Total(), a.paid.Unpriced).CostUSD)
}

// compare compares an answer with the known one, and counts it.
func (a *Answer) compare(expect *Expected, known json.RawMessage, share *Share) {
	if known == nil || a.Status != StatusAnswered {
		return
	}
	equal := expect.met(known, &a.value)
	a.Expected = &equal
	share.Rows++
	if equal {
		share.Equal++
	}
}
