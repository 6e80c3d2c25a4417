package auditlog

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// The events as encoding/json would write them: the order of fields, their names and what may be null, stated a second
// time and in another way.
type (
	refHead struct {
		SchemaVersion int       `json:"schema_version"`
		Event         string    `json:"event"`
		Time          string    `json:"time"`
		RunID         string    `json:"run_id"`
		Stage         string    `json:"stage"`
		Partition     Partition `json:"partition"`
	}
	refTokens struct {
		PromptTokens     *int64   `json:"prompt_tokens"`
		CompletionTokens *int64   `json:"completion_tokens"`
		TotalTokens      *int64   `json:"total_tokens"`
		CachedTokens     *int64   `json:"cached_tokens"`
		CacheWrite       *int64   `json:"cache_write_tokens,omitempty"`
		CacheWrite1h     *int64   `json:"cache_write_1h_tokens,omitempty"`
		ReasoningTokens  *int64   `json:"reasoning_tokens"`
		CostUSD          *float64 `json:"cost_usd"`
	}
	refCall struct {
		refHead
		StateID         *string    `json:"state_id"`
		Owner           *string    `json:"owner"`
		CallID          *string    `json:"call_id"`
		CallIndex       int        `json:"call_index"`
		Sequence        *uint64    `json:"sequence"`
		Item            *int       `json:"item,omitempty"`
		BatchID         *string    `json:"batch_id"`
		Lane            string     `json:"lane,omitempty"`
		Unused          bool       `json:"unused,omitempty"`
		Provider        *string    `json:"provider"`
		Model           *string    `json:"model"`
		Status          string     `json:"status"`
		StatusCode      *int       `json:"status_code"`
		ErrorClass      *string    `json:"error_class"`
		LatencyMS       float64    `json:"latency_ms"`
		DispatchDelayMS float64    `json:"dispatch_delay_ms"`
		RetryAfterMS    *float64   `json:"retry_after_ms"`
		RequestHash     *string    `json:"request_hash"`
		ResponseHash    *string    `json:"response_hash"`
		Request         any        `json:"request"`
		Response        any        `json:"response"`
		Truncated       bool       `json:"truncated"`
		Usage           *refTokens `json:"usage"`
		Error           *string    `json:"error"`
	}
	refError struct {
		Attempt    int     `json:"attempt"`
		Item       *int    `json:"item,omitempty"`
		Provider   *string `json:"provider"`
		Class      *string `json:"class"`
		StatusCode *int    `json:"status_code"`
		Error      string  `json:"error"`
	}
	refPoolConfig struct {
		PoolSize        int     `json:"pool_size"`
		DispatchDelayMS float64 `json:"dispatch_delay_at_completion_ms"`
	}
	refPoolStats struct {
		CapacityRetries uint64  `json:"capacity_retries"`
		Successes       uint64  `json:"successes"`
		MaxConcurrent   int     `json:"max_concurrent_reached"`
		ThrottleTimeMS  float64 `json:"total_throttle_time_ms"`
		PeakDelayMS     float64 `json:"peak_delay_ms"`
		CurrentDelayMS  float64 `json:"current_delay_ms"`
	}
	refRow struct {
		refHead
		StateID         *string       `json:"state_id"`
		Owner           *string       `json:"owner"`
		Sequence        uint64        `json:"sequence"`
		SubmitIndex     uint64        `json:"submit_index"`
		CompleteIndex   uint64        `json:"complete_index"`
		Status          string        `json:"status"`
		Reason          *string       `json:"reason"`
		Attempts        int           `json:"attempts"`
		CapacityRetries int           `json:"capacity_retries"`
		Errors          []refError    `json:"errors"`
		QueuedAt        *string       `json:"queued_at"`
		StartedAt       *string       `json:"started_at"`
		FinishedAt      *string       `json:"finished_at"`
		TemplateHash    *string       `json:"template_hash"`
		VariablesHash   *string       `json:"variables_hash"`
		ResultHash      string        `json:"result_hash,omitempty"`
		Usage           *refTokens    `json:"usage"`
		Source          *string       `json:"source"`
		PoolConfig      refPoolConfig `json:"pool_config"`
		PoolStats       refPoolStats  `json:"pool_stats"`
		OrderKey        *string       `json:"order_key,omitempty"`
		EarlierCalls    []TermCalls   `json:"earlier_calls,omitempty"`
		HeadersLeftOut  bool          `json:"headers_left_out,omitempty"`
		Truncated       bool          `json:"truncated,omitempty"`
	}
	refModelTotals struct {
		Provider *string `json:"provider"`
		Model    *string `json:"model"`
		refTotals
	}
	refTotals struct {
		Calls uint64 `json:"calls"`
		refTokens
	}
	refSummary struct {
		RowsSucceeded   uint64           `json:"rows_succeeded"`
		RowsFailed      uint64           `json:"rows_failed"`
		RowsSkipped     uint64           `json:"rows_skipped"`
		CapacityRetries uint64           `json:"capacity_retries"`
		PeakDelayMS     float64          `json:"peak_delay_ms"`
		ThrottledMS     float64          `json:"throttled_ms"`
		ExecutingMS     float64          `json:"executing_ms"`
		Usage           []refModelTotals `json:"usage"`
		Total           refTotals        `json:"total"`
	}
	refRun struct {
		refHead
		Phase     string            `json:"phase"`
		Reason    *string           `json:"reason"`
		Owner     *string           `json:"owner"`
		Settings  map[string]string `json:"settings"`
		Summary   *refSummary       `json:"summary"`
		Budget    *refBudget        `json:"budget,omitempty"`
		Truncated bool              `json:"truncated,omitempty"`
	}
	refBatch struct {
		refHead
		Owner    *string    `json:"owner"`
		Phase    string     `json:"phase"`
		Token    *string    `json:"token"`
		BatchID  *string    `json:"batch_id"`
		Provider *string    `json:"provider"`
		Model    *string    `json:"model"`
		Rows     int        `json:"rows"`
		Bytes    int64      `json:"bytes"`
		Answered int        `json:"answered"`
		Failed   int        `json:"failed"`
		Lapsed   int        `json:"lapsed"`
		Missing  int        `json:"missing"`
		Foreign  int        `json:"foreign"`
		Dropped  int        `json:"dropped"`
		Usage    *refTokens `json:"usage"`
		Reason   *string    `json:"reason"`
	}
	refBudget struct {
		Name     string   `json:"name"`
		Provider string   `json:"provider"`
		Mode     string   `json:"mode"`
		Members  int      `json:"members"`
		Share    float64  `json:"share"`
		Rate     *float64 `json:"rate_per_second"`
		Leader   *string  `json:"leader"`
	}
)

func null[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func refMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func refTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

func refMaybeTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(refTime(t))
}

func refHeader(h *Header, kind Kind) refHead {
	return refHead{SchemaVersion, string(kind), refTime(h.Time), h.RunID, h.Stage, h.Partition}
}

func refBody(b []byte) any {
	switch {
	case len(b) == 0:
		return nil
	case json.Valid(b) && utf8.Valid(b):
		return json.RawMessage(b)
	}
	return string(b)
}

func refUsage(u *Usage) (t refTokens, reported bool) {
	if u == nil {
		return t, false
	}
	return refTokens{&u.PromptTokens, &u.CompletionTokens, &u.TotalTokens, u.CachedTokens, u.CacheWriteTokens, u.CacheWrite1hTokens, u.ReasoningTokens, u.CostUSD}, true
}

func refMaybeUsage(u *Usage) *refTokens {
	if t, reported := refUsage(u); reported {
		return &t
	}
	return nil
}

func reference(e encoder) any {
	switch e := e.(type) {
	case *Call:
		return refCall{
			refHeader(&e.Header, KindCall), null(e.StateID), null(e.Owner), null(e.CallID), e.CallIndex, null(e.Sequence),
			e.Item, null(e.BatchID), e.Lane, e.Unused, null(e.Provider), null(e.Model), string(e.Status), null(e.StatusCode), null(e.ErrorClass),
			refMillis(e.Latency), refMillis(e.DispatchDelay), null(refMillis(e.RetryAfter)), null(e.RequestHash),
			null(e.ResponseHash), refBody(e.Request), refBody(e.Response), e.Truncated, refMaybeUsage(e.Usage), null(e.Error),
		}
	case *Row:
		errs := []refError{}
		for _, a := range e.Errors {
			errs = append(errs, refError{a.Attempt, a.Item, null(a.Provider), null(a.Class), null(a.StatusCode), a.Error})
		}
		s := e.PoolStats
		return refRow{
			refHeader(&e.Header, KindRow), null(e.StateID), null(e.Owner), e.Sequence, e.SubmitIndex, e.CompleteIndex, e.Status,
			null(e.Reason), e.Attempts, e.CapacityRetries, errs, refMaybeTime(e.QueuedAt), refMaybeTime(e.StartedAt),
			refMaybeTime(e.FinishedAt), null(e.TemplateHash), null(e.VariablesHash), e.ResultHash, refMaybeUsage(e.Usage), null(e.Source),
			refPoolConfig{e.PoolConfig.PoolSize, refMillis(e.PoolConfig.DispatchDelay)},
			refPoolStats{
				s.CapacityRetries, s.Successes, s.MaxConcurrent, refMillis(s.ThrottleTime), refMillis(s.PeakDelay), refMillis(s.CurrentDelay),
			},
			e.Key, e.EarlierCalls, e.HeadersLeftOut, e.Truncated,
		}
	case *Batch:
		return refBatch{
			refHeader(&e.Header, KindBatch), null(e.Owner), string(e.Phase), null(e.Token), null(e.BatchID), null(e.Provider), null(e.Model),
			e.Rows, e.Bytes, e.Answered, e.Failed, e.Lapsed, e.Missing, e.Foreign, e.Dropped, refMaybeUsage(e.Usage), null(e.Reason),
		}
	case *Run:
		r := refRun{refHeader(&e.Header, KindRun), string(e.Phase), null(e.Reason), null(e.Owner), e.Settings, nil, nil, e.Truncated}
		if b := e.Budget; b != nil {
			r.Budget = &refBudget{b.Name, b.Provider, b.Mode, b.Members, b.Share, b.Rate, null(b.Leader)}
		}
		if s := e.Summary; s != nil {
			r.Summary = &refSummary{
				s.RowsSucceeded, s.RowsFailed, s.RowsSkipped, s.CapacityRetries,
				refMillis(s.PeakDelay), refMillis(s.Throttled), refMillis(s.Executing),
				[]refModelTotals{},
				refTotal(s.Total),
			}
			for _, u := range s.Usage {
				r.Summary.Usage = append(r.Summary.Usage, refModelTotals{null(u.Provider), null(u.Model), refTotal(u.Totals)})
			}
		}
		return r
	}
	panic("unknown kind")
}

func refTotal(t Totals) refTotals {
	tokens, _ := refUsage(t.Usage)
	return refTotals{t.Calls, tokens}
}

func TestEventsAreWhatEncodingJSONWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent.Draw(t, "event")
		got := e.AppendJSON([]byte("before "), PayloadsFull, 0)

		var want bytes.Buffer
		want.WriteString("before ")
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(reference(e)); err != nil {
			t.Fatal(err)
		}
		want.Truncate(want.Len() - 1) // the encoder ends with a line feed
		if !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("got  %s\nwant %s", got, want.Bytes())
		}
	})
}
