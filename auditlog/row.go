package auditlog

import "time"

// The values of [Row.Status]. The result's Stage-Status header has the same.
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

// Row is the event of one row that is ready to be emitted.
type Row struct {
	Header
	// StateID names the row, see [StateID].
	StateID string `event:"state_id,null"`
	// Owner names the term of ownership that emits the row. Of several events about a
	// row, the one whose owner is the result's describes how that result was produced.
	Owner string `event:"owner,null"`
	// Sequence is the row's sequence in the input stream.
	Sequence uint64 `event:"sequence"`
	// SubmitIndex is the row's place among the rows taken in this term, from 0.
	SubmitIndex uint64 `event:"submit_index"`
	// CompleteIndex is the row's place among the rows completed in this term, from 0.
	CompleteIndex uint64 `event:"complete_index"`
	// Status is [RowSuccess] or [RowError].
	Status string `event:"status"`
	// Reason is the machine-readable cause of an error. It is empty on success.
	Reason string `event:"reason,null"`
	// Attempts counts the calls made for the row, except those that met a capacity error.
	Attempts int `event:"attempts"`
	// CapacityRetries counts the calls that met a capacity error.
	CapacityRetries int `event:"capacity_retries"`
	// Errors are the failed attempts, oldest first, also when the row succeeded in the
	// end. If the row failed, the last one says why. It is never null in JSON.
	Errors []AttemptError `event:"errors"`
	// QueuedAt is when the row was taken.
	QueuedAt time.Time `event:"queued_at,null"`
	// StartedAt is when the row's first call was sent. It is zero where there was none.
	StartedAt time.Time `event:"started_at,null"`
	// FinishedAt is when the row's answer was complete.
	FinishedAt time.Time `event:"finished_at,null"`
	// TemplateHash is the hash of the template in the result.
	TemplateHash string `event:"template_hash,null"`
	// VariablesHash is the hash of the template's variables in the result.
	VariablesHash string `event:"variables_hash,null"`
	// ResultHash is the SHA-256 of the result's body, in hexadecimal. It is empty where
	// it is unknown, as in an entry of the journal, whose body is made again.
	ResultHash string `event:"result_hash,omit"`
	// Usage sums the reported usage of all calls of the row. It is nil where none was
	// reported.
	Usage *Usage `event:"usage"`
	// Source is where the answer came from, one of the Source constants. It is empty
	// where no call was made, as for an invalid row.
	Source string `event:"source,null"`
	// PoolConfig is the pool's configuration when the row finished.
	PoolConfig PoolConfig `event:"pool_config"`
	// PoolStats is the pool's statistics at that time, over all rows.
	PoolStats PoolStats `event:"pool_stats"`
	// Key is the row's key where results are in order by key, and nil elsewhere. A row
	// without a key has the empty one.
	Key *string `event:"order_key,omit"`
	// EarlierCalls lists the elements of the row whose calls were not all made in the term
	// of Owner, and says which calls the reply to each is from. All other calls that the
	// event counts were made in that term.
	EarlierCalls []TermCalls `event:"earlier_calls,omit"`
	// CallsHash is the hash of the call events that the event counts, in hexadecimal. It
	// begins with 32 zero bytes. Each call, in the order in which they were made, makes it
	// the SHA-256 of the hash so far followed by the SHA-256 of the call's event as it was
	// recorded. In a row that fans out, the hashes of the elements with calls take the place
	// of the calls, in the order of the elements. It is empty where no call counts, or where
	// an earlier version has kept the reply.
	CallsHash string `event:"calls_hash,omit"`
	// Salt is random. Without it, whoever has the hash of an erased row could try out
	// which row it was. It is empty in an entry of the journal.
	Salt string `event:"salt,omit"`
	// HeadersLeftOut is set when the row's own headers are not on its result, since there
	// was no room for them.
	HeadersLeftOut bool `event:"headers_left_out,omit"`
	// Truncated is set when the oldest errors were left out, or error texts cut, because
	// the event was too large.
	Truncated bool `event:"truncated,omit"`
	// Erased is set where `stage erase` has removed what the event held of the row's
	// content: see [Row.Erase].
	Erased bool `event:"erased,omit"`
}

// TermCalls are the elements of a row whose replies came in one term of ownership.
type TermCalls struct {
	// Owner names the term in which the last call for each of the elements was made.
	Owner string `event:"owner"`
	// Items are the elements, in order.
	Items []ItemCalls `event:"items"`
}

// ItemCalls says which calls a reply to an element of a row is from: as many as Calls says,
// up to the one with CallIndex, one after the other in one process.
type ItemCalls struct {
	// Item is the element, from 0.
	Item int `event:"item"`
	// CallIndex is the [Call.CallIndex] of the last call, in its term.
	CallIndex int `event:"call_index"`
	// Calls counts these calls. Some may have been made in earlier terms of the process.
	Calls int `event:"calls"`
}

// AttemptError is one failed attempt at a row.
type AttemptError struct {
	// Attempt counts the row's calls, from 1. It is 0 where the row failed without an
	// attempt, for example because its template could not be rendered.
	Attempt int `event:"attempt"`
	// Item is which element of the row was called for, from 0. It is nil where the call
	// was for the whole row.
	Item *int `event:"item,omit"`
	// Provider is the provider that was called.
	Provider string `event:"provider,null"`
	// Class is "capacity", "transient", "permanent" or "fatal".
	Class string `event:"class,null"`
	// StatusCode is the HTTP status. It is 0 where there was no reply.
	StatusCode int `event:"status_code,null"`
	// Error is the error message.
	Error string `event:"error"`
}

// PoolConfig is the pool's configuration at an instant.
type PoolConfig struct {
	// PoolSize is the most calls in flight.
	PoolSize int `event:"pool_size"`
	// DispatchDelay is the throttle's delay between two calls.
	DispatchDelay time.Duration `event:"dispatch_delay_at_completion_ms"`
}

// PoolStats are the pool's statistics since its start.
type PoolStats struct {
	// CapacityRetries counts rejections for lack of capacity.
	CapacityRetries uint64 `event:"capacity_retries"`
	// Successes counts the calls that succeeded.
	Successes uint64 `event:"successes"`
	// MaxConcurrent is the most calls that were in flight at once.
	MaxConcurrent int `event:"max_concurrent_reached"`
	// ThrottleTime is the time in which rows were ready and waited for the throttle.
	ThrottleTime time.Duration `event:"total_throttle_time_ms"`
	// PeakDelay is the longest dispatch delay so far.
	PeakDelay time.Duration `event:"peak_delay_ms"`
	// CurrentDelay is the present dispatch delay.
	CurrentDelay time.Duration `event:"current_delay_ms"`
}

// MsgID returns the event's id for the Nats-Msg-Id header, see [MsgID]. A row has one
// event in a term, so its index is 0.
func (r *Row) MsgID() string { return MsgID(r.StateID, r.Owner, KindRow, 0) }

// errorCut is what an error text is cut to when a row's event is too large: the length of
// every other preview.
const errorCut = 500

// AppendJSON appends the event to dst and returns the extended slice. With a dst that is
// large enough it allocates nothing. A row holds no bodies, so payloads makes no
// difference; it is there to treat all kinds alike.
//
// In an event that would take more than bytesMax bytes (0 or less means no bound) error
// texts are cut. If that is not enough, the oldest errors are left out until it fits,
// with truncated set. The counts are not changed. The rest is written even if it takes
// more.
func (r *Row) AppendJSON(dst []byte, _ Payloads, bytesMax int) []byte {
	start := len(dst)
	dst = rowLayout.appendEvent(dst, KindRow, r)
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
	for {
		dst = rowLayout.appendEvent(dst[:start], KindRow, &lean)
		if len(dst)-start <= bytesMax || len(lean.Errors) == 0 {
			return dst
		}
		lean.Errors = lean.Errors[(len(lean.Errors)+1)/2:]
	}
}
