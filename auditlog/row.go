package auditlog

import (
	"strconv"
	"time"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// The values of [Row.Status], the same as those of the result's Stage-Status header.
const (
	RowSuccess = "success"
	RowError   = "error"
)

// The values of [Row.Source]: where a row's answer came from.
const (
	// SourceCall is a call made for this row in this term.
	SourceCall = "call"
	// SourceJournal is a reply to this row that was kept from an earlier term.
	SourceJournal = "journal"
	// SourceDedupe is the reply to an equal request.
	SourceDedupe = "dedupe"
	// SourceUpstream is the row itself: it came in as an error and was passed on.
	SourceUpstream = "upstream"
)

// Row is the event of one row that is ready to be emitted. Empty strings and zero times are written as null.
type Row struct {
	Header
	// StateID names the row, see [StateID].
	StateID string
	// Owner names the term of ownership that emits the row. Of several events about a row, the one whose owner is the
	// result's describes how that result was produced.
	Owner string
	// Sequence is the row's sequence in the input stream, SubmitIndex its place among the rows taken in this term and
	// CompleteIndex its place among the rows completed, both from 0.
	Sequence, SubmitIndex, CompleteIndex uint64
	// Status is [RowSuccess] or [RowError].
	Status string
	// Reason is the machine-readable cause of an error; empty on success.
	Reason string
	// Attempts counts the calls made for the row without those that met a capacity error, which are in CapacityRetries.
	Attempts, CapacityRetries int
	// Errors is the failed attempts, oldest first, also when the row succeeded in the end. The last one of a row that
	// failed is why. Never null in JSON.
	Errors []AttemptError
	// QueuedAt is when the row was taken, StartedAt when its first call was sent, FinishedAt when its answer was complete.
	// Zero: that did not happen.
	QueuedAt, StartedAt, FinishedAt time.Time
	// TemplateHash and VariablesHash are those of the result.
	TemplateHash, VariablesHash string
	// ResultHash is the SHA-256 of the result's body, in hexadecimal. Empty, and then it is not in the JSON: unknown, as in
	// an entry of the journal, whose body is made again.
	ResultHash string
	// Usage sums the reported usage of all calls of the row; nil: none was reported.
	Usage *Usage
	// Source is where the answer came from, one of the Source constants. Empty: no call was made, as for an invalid row.
	Source string
	// PoolConfig is the pool's configuration when the row finished.
	PoolConfig PoolConfig
	// PoolStats is the pool's statistics at that time, over all rows.
	PoolStats PoolStats
	// Key is the row's key where results are in order by key; nil: they are not, and it is not in the JSON. A row without
	// a key has the empty one.
	Key *string
	// EarlierCalls says of each element of the row whose calls are not all of Owner which calls its reply is from. All other
	// calls that the event counts are of Owner. Empty, and then it is not in the JSON: all are.
	EarlierCalls []TermCalls
	// HeadersLeftOut is set when the row's own headers are not on its result, since there was no room for them. It is in the
	// JSON only when true.
	HeadersLeftOut bool
	// Truncated is set when the oldest errors were left out, or error texts cut, because the event was too large. It is in
	// the JSON only when true.
	Truncated bool
}

// TermCalls are the elements of a row whose replies came in one term of ownership.
type TermCalls struct {
	// Owner names the term in which the last call for each of the elements was made.
	Owner string `json:"owner"`
	// Items are the elements, in order.
	Items []ItemCalls `json:"items"`
}

// ItemCalls says which calls a reply to an element of a row is from: so many, one after the other in one process.
type ItemCalls struct {
	// Item is the element, from 0.
	Item int `json:"item"`
	// CallIndex is the [Call.CallIndex] of the last call, in its term.
	CallIndex int `json:"call_index"`
	// Calls counts all of them, those in earlier terms of the process included.
	Calls int `json:"calls"`
}

// AttemptError is one failed attempt at a row.
type AttemptError struct {
	// Attempt counts the row's calls, from 1. 0: it is no attempt, but why the row failed all the same, as of a template
	// that could not be rendered.
	Attempt int `json:"attempt"`
	// Item is which element of the row was called for, from 0; nil: the whole row, and then it is not in the JSON.
	Item *int `json:"item,omitempty"`
	// Provider is the one called. Empty is null in JSON, as for Class.
	Provider string `json:"provider"`
	// Class is "capacity", "transient", "permanent" or "fatal".
	Class string `json:"class"`
	// StatusCode is the HTTP status; 0, null in JSON: there was no reply.
	StatusCode int `json:"status_code"`
	// Error is the error message.
	Error string `json:"error"`
}

// PoolConfig is the pool's configuration at an instant.
type PoolConfig struct {
	// PoolSize is the most calls in flight.
	PoolSize int
	// DispatchDelay is the throttle's delay between two calls.
	DispatchDelay time.Duration
}

// PoolStats are the pool's statistics since its start.
type PoolStats struct {
	// CapacityRetries counts rejections for lack of capacity, Successes the calls that succeeded.
	CapacityRetries, Successes uint64
	// MaxConcurrent is the most calls that were in flight at once.
	MaxConcurrent int
	// ThrottleTime is the time in which rows were ready and waited for the throttle.
	ThrottleTime time.Duration
	// PeakDelay is the longest dispatch delay so far, CurrentDelay the present one.
	PeakDelay, CurrentDelay time.Duration
}

// MsgID returns the event's id for the Nats-Msg-Id header, see [MsgID]. A row has one event in a term, so its index is
// 0.
func (r *Row) MsgID() string { return MsgID(r.StateID, r.Owner, KindRow, 0) }

// errorCut is what an error text is cut to when a row's event is too large: the length of every other preview.
const errorCut = 500

// AppendJSON appends the event to dst and returns the extended slice. With a dst that is large enough it allocates
// nothing. A row holds no bodies, so payloads makes no difference; it is there to treat all kinds alike.
//
// In an event that would take more than bytesMax bytes (0 or less: no bound) error texts are cut, and if that is not
// enough the oldest errors are left out until it fits, with truncated set. The counts stay what they are. The rest is
// written whatever it takes.
func (r *Row) AppendJSON(dst []byte, _ Payloads, bytesMax int) []byte {
	start := len(dst)
	dst = r.append(dst)
	if bytesMax <= 0 || len(dst)-start <= bytesMax || len(r.Errors) == 0 {
		return dst
	}
	lean := *r
	lean.Truncated = true
	lean.Errors = make([]AttemptError, len(r.Errors))
	for i, e := range r.Errors {
		e.Error = cut(e.Error, errorCut)
		lean.Errors[i] = e
	}
	for dst = lean.append(dst[:start]); len(dst)-start > bytesMax && len(lean.Errors) > 0; dst = lean.append(dst[:start]) {
		lean.Errors = lean.Errors[(len(lean.Errors)+1)/2:]
	}
	return dst
}

func (r *Row) append(dst []byte) []byte {
	dst = r.appendHead(dst, KindRow)
	dst = stringOrNull(append(dst, `,"state_id":`...), r.StateID)
	dst = stringOrNull(append(dst, `,"owner":`...), r.Owner)
	dst = strconv.AppendUint(append(dst, `,"sequence":`...), r.Sequence, 10)
	dst = strconv.AppendUint(append(dst, `,"submit_index":`...), r.SubmitIndex, 10)
	dst = strconv.AppendUint(append(dst, `,"complete_index":`...), r.CompleteIndex, 10)
	dst = jsonbytes.AppendEscaped(append(dst, `,"status":`...), r.Status)
	dst = stringOrNull(append(dst, `,"reason":`...), r.Reason)
	dst = strconv.AppendInt(append(dst, `,"attempts":`...), int64(r.Attempts), 10)
	dst = strconv.AppendInt(append(dst, `,"capacity_retries":`...), int64(r.CapacityRetries), 10)
	dst = append(dst, `,"errors":[`...)
	for i := range r.Errors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = r.Errors[i].append(dst)
	}
	dst = timeOrNull(append(dst, `],"queued_at":`...), r.QueuedAt)
	dst = timeOrNull(append(dst, `,"started_at":`...), r.StartedAt)
	dst = timeOrNull(append(dst, `,"finished_at":`...), r.FinishedAt)
	dst = stringOrNull(append(dst, `,"template_hash":`...), r.TemplateHash)
	dst = stringOrNull(append(dst, `,"variables_hash":`...), r.VariablesHash)
	if r.ResultHash != "" {
		dst = jsonbytes.AppendEscaped(append(dst, `,"result_hash":`...), r.ResultHash)
	}
	dst = usage(append(dst, `,"usage":`...), r.Usage)
	dst = stringOrNull(append(dst, `,"source":`...), r.Source)
	dst = r.PoolConfig.append(append(dst, `,"pool_config":`...))
	dst = r.PoolStats.append(append(dst, `,"pool_stats":`...))
	if r.Key != nil {
		dst = jsonbytes.AppendEscaped(append(dst, `,"order_key":`...), *r.Key)
	}
	if len(r.EarlierCalls) > 0 {
		dst = append(dst, `,"earlier_calls":[`...)
		for i := range r.EarlierCalls {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = r.EarlierCalls[i].append(dst)
		}
		dst = append(dst, ']')
	}
	if r.HeadersLeftOut {
		dst = append(dst, `,"headers_left_out":true`...)
	}
	if r.Truncated {
		dst = append(dst, `,"truncated":true`...)
	}
	return append(dst, '}')
}

func (t *TermCalls) append(dst []byte) []byte {
	dst = jsonbytes.AppendEscaped(append(dst, `{"owner":`...), t.Owner)
	dst = append(dst, `,"items":[`...)
	for i, c := range t.Items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(append(dst, `{"item":`...), int64(c.Item), 10)
		dst = strconv.AppendInt(append(dst, `,"call_index":`...), int64(c.CallIndex), 10)
		dst = strconv.AppendInt(append(dst, `,"calls":`...), int64(c.Calls), 10)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

func (e *AttemptError) append(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, `{"attempt":`...), int64(e.Attempt), 10)
	if e.Item != nil {
		dst = strconv.AppendInt(append(dst, `,"item":`...), int64(*e.Item), 10)
	}
	dst = stringOrNull(append(dst, `,"provider":`...), e.Provider)
	dst = stringOrNull(append(dst, `,"class":`...), e.Class)
	dst = numberOrNull(append(dst, `,"status_code":`...), e.StatusCode)
	dst = jsonbytes.AppendEscaped(append(dst, `,"error":`...), e.Error)
	return append(dst, '}')
}

func (p *PoolConfig) append(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, `{"pool_size":`...), int64(p.PoolSize), 10)
	dst = millis(append(dst, `,"dispatch_delay_at_completion_ms":`...), p.DispatchDelay)
	return append(dst, '}')
}

func (p *PoolStats) append(dst []byte) []byte {
	dst = strconv.AppendUint(append(dst, `{"capacity_retries":`...), p.CapacityRetries, 10)
	dst = strconv.AppendUint(append(dst, `,"successes":`...), p.Successes, 10)
	dst = strconv.AppendInt(append(dst, `,"max_concurrent_reached":`...), int64(p.MaxConcurrent), 10)
	dst = millis(append(dst, `,"total_throttle_time_ms":`...), p.ThrottleTime)
	dst = millis(append(dst, `,"peak_delay_ms":`...), p.PeakDelay)
	dst = millis(append(dst, `,"current_delay_ms":`...), p.CurrentDelay)
	return append(dst, '}')
}
