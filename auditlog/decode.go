package auditlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Errors of [Decode], to be matched with [errors.Is].
var (
	// ErrKind means that the message is an event of an unknown kind, or no event at all.
	ErrKind = errors.New("not an audit event of kind call, row, run or batch")
	// ErrSchemaVersion means that the event was written by a later stage, whose fields may have other meanings.
	ErrSchemaVersion = errors.New("audit event of an unknown schema version: read it with the stage that wrote it, or a newer one")
)

// Event is one event as a reader meets it.
type Event struct {
	// SchemaVersion is that of the writer.
	SchemaVersion int
	// Kind is which of Call, Row, Run and Batch is set.
	Kind Kind
	// Header is that of the event, here for readers who need no more.
	Header
	// Call, Row, Run and Batch: exactly one is not nil.
	Call  *Call
	Row   *Row
	Run   *Run
	Batch *Batch
}

// Decode reads an event of any kind. Null and absent fields become zero values, unknown fields are ignored, times are
// in UTC. The event keeps no reference to data.
//
// It returns [ErrSchemaVersion], [ErrKind], or an error of encoding/json.
func Decode(data []byte) (*Event, error) {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, fmt.Errorf("decode audit event: %w", err)
	}
	e := &Event{SchemaVersion: w.SchemaVersion, Kind: w.Event, Header: Header{
		Time: time.Time(w.Time), RunID: w.RunID, Stage: w.Stage, Partition: w.Partition,
	}}
	switch {
	case w.Event != KindCall && w.Event != KindRow && w.Event != KindRun && w.Event != KindBatch:
		return nil, fmt.Errorf("decode audit event %.40q: %w", w.Event, ErrKind)
	case w.SchemaVersion != SchemaVersion:
		return nil, fmt.Errorf("decode audit event, version %d: %w", w.SchemaVersion, ErrSchemaVersion)
	case w.Event == KindCall:
		e.Call = w.call(e.Header)
	case w.Event == KindRow:
		e.Row = w.row(e.Header)
	case w.Event == KindBatch:
		e.Batch = w.batch(e.Header)
	default:
		e.Run = w.run(e.Header)
	}
	return e, nil
}

// wire has the fields of all kinds, so that an event, which may be a megabyte of bodies, is read in one pass. A name
// that two kinds share has one meaning in both.
type wire struct {
	SchemaVersion int       `json:"schema_version"`
	Event         Kind      `json:"event"`
	Time          timestamp `json:"time"`
	RunID         string    `json:"run_id"`
	Stage         string    `json:"stage"`
	Partition     Partition `json:"partition"`

	StateID   string     `json:"state_id"`
	Owner     string     `json:"owner"`
	Sequence  uint64     `json:"sequence"`
	Status    string     `json:"status"`
	Reason    string     `json:"reason"`
	Truncated bool       `json:"truncated"`
	Usage     *wireUsage `json:"usage"`

	CallID        string          `json:"call_id"`
	CallIndex     int             `json:"call_index"`
	BatchID       string          `json:"batch_id"`
	Item          *int            `json:"item"`
	Lane          string          `json:"lane"`
	Unused        bool            `json:"unused"`
	Provider      string          `json:"provider"`
	Model         string          `json:"model"`
	StatusCode    int             `json:"status_code"`
	ErrorClass    string          `json:"error_class"`
	Latency       milliseconds    `json:"latency_ms"`
	DispatchDelay milliseconds    `json:"dispatch_delay_ms"`
	RetryAfter    milliseconds    `json:"retry_after_ms"`
	RequestHash   string          `json:"request_hash"`
	ResponseHash  string          `json:"response_hash"`
	Request       json.RawMessage `json:"request"`
	Response      json.RawMessage `json:"response"`
	Error         string          `json:"error"`

	SubmitIndex     uint64         `json:"submit_index"`
	CompleteIndex   uint64         `json:"complete_index"`
	Attempts        int            `json:"attempts"`
	CapacityRetries int            `json:"capacity_retries"`
	Errors          []AttemptError `json:"errors"`
	QueuedAt        timestamp      `json:"queued_at"`
	StartedAt       timestamp      `json:"started_at"`
	FinishedAt      timestamp      `json:"finished_at"`
	TemplateHash    string         `json:"template_hash"`
	VariablesHash   string         `json:"variables_hash"`
	Source          string         `json:"source"`
	PoolConfig      wirePoolConfig `json:"pool_config"`
	PoolStats       wirePoolStats  `json:"pool_stats"`
	OrderKey        *string        `json:"order_key"`
	ResultHash      string         `json:"result_hash"`
	EarlierCalls    []TermCalls    `json:"earlier_calls"`
	HeadersLeftOut  bool           `json:"headers_left_out"`

	Token    string `json:"token"`
	Rows     int    `json:"rows"`
	Bytes    int64  `json:"bytes"`
	Answered int    `json:"answered"`
	Failed   int    `json:"failed"`
	Lapsed   int    `json:"lapsed"`
	Missing  int    `json:"missing"`
	Foreign  int    `json:"foreign"`
	Dropped  int    `json:"dropped"`

	Phase    string            `json:"phase"`
	Settings map[string]string `json:"settings"`
	Summary  *wireSummary      `json:"summary"`
	Budget   *wireBudget       `json:"budget"`
}

type wireUsage struct {
	PromptTokens       *int64   `json:"prompt_tokens"`
	CompletionTokens   *int64   `json:"completion_tokens"`
	TotalTokens        *int64   `json:"total_tokens"`
	CachedTokens       *int64   `json:"cached_tokens"`
	CacheWriteTokens   *int64   `json:"cache_write_tokens"`
	CacheWrite1hTokens *int64   `json:"cache_write_1h_tokens"`
	ReasoningTokens    *int64   `json:"reasoning_tokens"`
	CostUSD            *float64 `json:"cost_usd"`
}

type wirePoolConfig struct {
	PoolSize      int          `json:"pool_size"`
	DispatchDelay milliseconds `json:"dispatch_delay_at_completion_ms"`
}

type wirePoolStats struct {
	CapacityRetries uint64       `json:"capacity_retries"`
	Successes       uint64       `json:"successes"`
	MaxConcurrent   int          `json:"max_concurrent_reached"`
	ThrottleTime    milliseconds `json:"total_throttle_time_ms"`
	PeakDelay       milliseconds `json:"peak_delay_ms"`
	CurrentDelay    milliseconds `json:"current_delay_ms"`
}

type wireSummary struct {
	RowsSucceeded   uint64       `json:"rows_succeeded"`
	RowsFailed      uint64       `json:"rows_failed"`
	RowsSkipped     uint64       `json:"rows_skipped"`
	CapacityRetries uint64       `json:"capacity_retries"`
	PeakDelay       milliseconds `json:"peak_delay_ms"`
	Throttled       milliseconds `json:"throttled_ms"`
	Executing       milliseconds `json:"executing_ms"`
	Usage           []struct {
		Provider string `json:"provider"`
		Model    string `json:"model"`
		wireTotals
	} `json:"usage"`
	Total wireTotals `json:"total"`
}

type wireBudget struct {
	Name     string   `json:"name"`
	Provider string   `json:"provider"`
	Mode     string   `json:"mode"`
	Members  int      `json:"members"`
	Share    float64  `json:"share"`
	Rate     *float64 `json:"rate_per_second"`
	Leader   string   `json:"leader"`
}

type wireTotals struct {
	Calls uint64 `json:"calls"`
	wireUsage
}

func (w *wire) call(h Header) *Call {
	return &Call{
		Header: h, StateID: w.StateID, Owner: w.Owner, CallID: w.CallID, CallIndex: w.CallIndex,
		Sequence: w.Sequence, BatchID: w.BatchID, Item: w.Item, Lane: w.Lane, Unused: w.Unused, Provider: w.Provider, Model: w.Model,
		Status: CallStatus(w.Status), StatusCode: w.StatusCode, ErrorClass: w.ErrorClass,
		Latency: time.Duration(w.Latency), DispatchDelay: time.Duration(w.DispatchDelay), RetryAfter: time.Duration(w.RetryAfter),
		RequestHash: w.RequestHash, ResponseHash: w.ResponseHash, Request: notNull(w.Request), Response: notNull(w.Response),
		Truncated: w.Truncated, Usage: w.Usage.usage(), Error: w.Error,
	}
}

func (w *wire) row(h Header) *Row {
	return &Row{
		Header: h, StateID: w.StateID, Owner: w.Owner,
		Sequence: w.Sequence, SubmitIndex: w.SubmitIndex, CompleteIndex: w.CompleteIndex,
		Status: w.Status, Reason: w.Reason, Attempts: w.Attempts, CapacityRetries: w.CapacityRetries,
		QueuedAt: time.Time(w.QueuedAt), StartedAt: time.Time(w.StartedAt), FinishedAt: time.Time(w.FinishedAt),
		TemplateHash: w.TemplateHash, VariablesHash: w.VariablesHash, Usage: w.Usage.usage(), Source: w.Source,
		PoolConfig: PoolConfig{PoolSize: w.PoolConfig.PoolSize, DispatchDelay: time.Duration(w.PoolConfig.DispatchDelay)},
		PoolStats: PoolStats{
			CapacityRetries: w.PoolStats.CapacityRetries, Successes: w.PoolStats.Successes,
			MaxConcurrent: w.PoolStats.MaxConcurrent, ThrottleTime: time.Duration(w.PoolStats.ThrottleTime),
			PeakDelay: time.Duration(w.PoolStats.PeakDelay), CurrentDelay: time.Duration(w.PoolStats.CurrentDelay),
		},
		Errors: append([]AttemptError(nil), w.Errors...), Key: w.OrderKey, HeadersLeftOut: w.HeadersLeftOut, Truncated: w.Truncated,
		ResultHash: w.ResultHash, EarlierCalls: w.EarlierCalls,
	}
}

func (w *wire) batch(h Header) *Batch {
	return &Batch{
		Header: h, Owner: w.Owner, Phase: BatchPhase(w.Phase), Token: w.Token, BatchID: w.BatchID, Provider: w.Provider, Model: w.Model,
		Rows: w.Rows, Bytes: w.Bytes, Answered: w.Answered, Failed: w.Failed, Lapsed: w.Lapsed, Missing: w.Missing,
		Foreign: w.Foreign, Dropped: w.Dropped, Usage: w.Usage.usage(), Reason: w.Reason,
	}
}

func (w *wire) run(h Header) *Run {
	r := &Run{Header: h, Phase: Phase(w.Phase), Reason: w.Reason, Owner: w.Owner, Settings: w.Settings, Budget: (*Budget)(w.Budget), Truncated: w.Truncated}
	if s := w.Summary; s != nil {
		r.Summary = &Summary{
			RowsSucceeded: s.RowsSucceeded, RowsFailed: s.RowsFailed, RowsSkipped: s.RowsSkipped,
			CapacityRetries: s.CapacityRetries, PeakDelay: time.Duration(s.PeakDelay),
			Throttled: time.Duration(s.Throttled), Executing: time.Duration(s.Executing),
			Total: s.Total.totals(),
		}
		for i := range s.Usage {
			u := &s.Usage[i]
			r.Summary.Usage = append(r.Summary.Usage, ModelTotals{Provider: u.Provider, Model: u.Model, Totals: u.totals()})
		}
	}
	return r
}

func (t *wireTotals) totals() Totals { return Totals{Calls: t.Calls, Usage: t.usage()} }

// usage returns nil when nothing was reported, whether that is written as one null or as many.
func (u *wireUsage) usage() *Usage {
	if u == nil || *u == (wireUsage{}) {
		return nil
	}
	return &Usage{
		PromptTokens: orZero(u.PromptTokens), CompletionTokens: orZero(u.CompletionTokens), TotalTokens: orZero(u.TotalTokens),
		CachedTokens: u.CachedTokens, CacheWriteTokens: u.CacheWriteTokens, CacheWrite1hTokens: u.CacheWrite1hTokens,
		ReasoningTokens: u.ReasoningTokens, CostUSD: u.CostUSD,
	}
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func notNull(b json.RawMessage) []byte {
	if string(b) == "null" {
		return nil
	}
	return b
}

// milliseconds is a duration as a JSON number.
type milliseconds time.Duration

// UnmarshalJSON reads a number, fractions included, to the microsecond. Null is 0.
func (m *milliseconds) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	ms, err := strconv.ParseFloat(string(data), 64)
	us := math.Round(ms * 1000)
	if err != nil || math.Abs(us) > float64(math.MaxInt64/int64(time.Microsecond)) {
		return fmt.Errorf("duration %.40s: want a number of milliseconds within 292 years", data)
	}
	*m = milliseconds(time.Duration(us) * time.Microsecond)
	return nil
}

// timestamp is a time by RFC 3339.
type timestamp time.Time

// UnmarshalJSON reads a time in any zone. Null is the zero time.
func (t *timestamp) UnmarshalJSON(data []byte) error {
	var v time.Time
	if err := v.UnmarshalJSON(data); err != nil { // which leaves null alone
		return err
	}
	v = v.UTC()
	if v.Year() < 0 || v.Year() > 9999 {
		return fmt.Errorf("time %.40s: its year in UTC has not four digits", data)
	}
	*t = timestamp(v)
	return nil
}
