package auditlog

import "time"

// LaneBatch is the lane of calls that a provider's Batch API answered.
const LaneBatch = "batch"

// CallStatus is how one HTTP attempt ended.
type CallStatus string

// The values of CallStatus.
const (
	// CallSuccess is an answer that counts.
	CallSuccess CallStatus = "success"
	// CallFailure is an error that is not about capacity.
	CallFailure CallStatus = "failure"
	// CallCapacityRetry is a capacity error: the row waits and is sent again.
	CallCapacityRetry CallStatus = "capacity_retry"
	// CallUnknown is a call that was cut off after it had been sent. It may have been
	// answered, and billed.
	CallUnknown CallStatus = "unknown"
)

// Call is the event of one HTTP attempt, retries too. The tag of a field says how its
// zero value is written; see the package comment.
type Call struct {
	Header
	// StateID names the row, see [StateID]. It is empty for the call of a batched
	// request.
	StateID string `event:"state_id,null"`
	// Owner names the term of ownership in which the call was made.
	Owner string `event:"owner,null"`
	// CallID is the call's permanent name.
	CallID string `event:"call_id,null"`
	// CallIndex counts the calls of this row in this term, from 0.
	CallIndex int `event:"call_index"`
	// Sequence is the row's sequence in the input stream. It is 0 for the call of a
	// batched request.
	Sequence uint64 `event:"sequence,null"`
	// Item is which element of its row the call was for, from 0. It is nil where the call
	// was for the whole row. StateID then names the element: see [ItemStateID].
	Item *int `event:"item,omit"`
	// Rows are the sequences of all rows that the call was for, where one call serves
	// several: one sequence for each text, in the order of the texts. StateID, Sequence and
	// CallIndex name the first row, and [Call.EachRow] goes through all of them. Rows is
	// empty for a call that serves one row alone, as calls for chat do.
	Rows []uint64 `event:"rows,omit"`
	// Items are, with Rows, the elements of these rows that the texts are. It is empty
	// where the texts are of whole rows.
	Items []int `event:"items,omit"`
	// CallIndexes are, with Rows, the CallIndex of the call for each of them, where these
	// are not all CallIndex.
	CallIndexes []int `event:"call_indexes,omit"`
	// Owners are, with Rows, the terms of the rows, where these are not all Owner: while a
	// process takes rows of its last term again, some belong to the new one already.
	Owners []string `event:"owners,omit"`
	// RowTokens divide, with Rows, the usage's prompt tokens among the texts, one part for
	// each. They add up to all of them. It is empty where there is no usage.
	RowTokens []int64 `event:"row_tokens,omit"`
	// BatchID names the batched request. With Lane it is the provider's id of the batch
	// that answered the row. It is empty for other calls.
	BatchID string `event:"batch_id,null"`
	// Lane is [LaneBatch] where a provider's Batch API answered, and empty for a live
	// call.
	Lane string `event:"lane,omit"`
	// Unused is set, with Lane, where no row takes the answer: its row went live before
	// the answer came. It was billed all the same. CallIndex is then 0.
	Unused bool `event:"unused,omit"`
	// Provider is the provider that was called.
	Provider string `event:"provider,null"`
	// Model is the model that was called.
	Model string `event:"model,null"`
	// Status is how the call ended.
	Status CallStatus `event:"status"`
	// StatusCode is the HTTP status. It is 0 where no reply came.
	StatusCode int `event:"status_code,null"`
	// ErrorClass is "capacity", "transient", "permanent" or "fatal". It is empty where
	// there was no error, or no verdict.
	ErrorClass string `event:"error_class,null"`
	// Latency is the time from sending to the end of the reply.
	Latency time.Duration `event:"latency_ms"`
	// DispatchDelay is the throttle's delay between calls when this one was sent.
	DispatchDelay time.Duration `event:"dispatch_delay_ms"`
	// Belief is what the throttle believed about the server when this call was sent, in
	// words. It is empty but for a call that met a capacity error.
	Belief string `event:"belief,omit"`
	// Throttled is the time in which rows were ready and waited for the throttle, since the
	// process has begun. It is 0 but for a call that met a capacity error. A process that is
	// killed leaves no summary, so a reader takes the time from its last refused call.
	Throttled time.Duration `event:"throttled_ms,omit"`
	// RetryAfter is the wait that the server asked for. It is 0 where it asked for none.
	RetryAfter time.Duration `event:"retry_after_ms,null"`
	// RequestHash is the SHA-256, in hex, of the request's body as it went over the wire,
	// secrets aside. It is taken before Request is left out or cut.
	RequestHash string `event:"request_hash,null"`
	// ResponseHash is the SHA-256 of the reply's body, taken in the same way.
	ResponseHash string `event:"response_hash,null"`
	// Request is the body that was sent. A body that is JSON becomes part of the event,
	// its bytes kept. Any other is written as a string, bad UTF-8 replaced. [Decode]
	// returns the JSON value in either case.
	Request []byte `event:"request"`
	// Response is the body that came back, in the same form.
	Response []byte `event:"response"`
	// Truncated is set when the bodies were left out, or the error cut, because the event
	// was too large.
	Truncated bool `event:"truncated"`
	// Usage is what the server reported. It is nil where it reported nothing.
	Usage *Usage `event:"usage"`
	// Error is the error message. It is empty on success.
	Error string `event:"error,null"`
	// Erased is set where `stage erase` has removed bodies, hashes and the error: see
	// [Call.Erase].
	Erased bool `event:"erased,omit"`
}

// MsgID returns the event's id for the Nats-Msg-Id header, see [MsgID]. Where the call
// has no row, its batch and its own name stand in: clients choose ids of batches, and may
// give one a second time. A line of a provider's batch is one event for each
// owner that reads it, however often it is read.
func (c *Call) MsgID() string {
	if c.Lane != "" {
		return MsgID(c.StateID+"/"+c.CallID, c.Owner, KindCall, 0)
	}
	id := c.StateID
	if id == "" {
		id = c.BatchID + "/" + c.CallID
	}
	return MsgID(id, c.Owner, KindCall, c.CallIndex)
}

// AppendJSON appends the event to dst and returns the extended slice. With a dst that is
// large enough it allocates nothing but a copy of c, where it writes less than all of it.
//
// An event that would take more than bytesMax bytes (0 or less means no bound) is written
// without bodies and with truncated set. If that is not enough the error text is cut. The
// remaining ids and numbers are written even if they take more.
func (c *Call) AppendJSON(dst []byte, payloads Payloads, bytesMax int) []byte {
	start := len(dst)
	if payloads != PayloadsFull {
		lean := *c
		lean.Request, lean.Response = nil, nil
		if payloads == PayloadsNone {
			lean.RequestHash, lean.ResponseHash = "", ""
		}
		c = &lean
	}
	// The first test keeps a body that cannot fit from being copied, the second counts
	// everything.
	if bodies := len(c.Request) + len(c.Response); bytesMax <= 0 || bodies <= bytesMax {
		dst = callLayout.appendEvent(dst, KindCall, c)
		if bytesMax <= 0 || len(dst)-start <= bytesMax {
			return dst
		}
	}
	lean := *c
	lean.Request, lean.Response, lean.Truncated = nil, nil, true
	dst = callLayout.appendEvent(dst[:start], KindCall, &lean)
	if over := len(dst) - start - bytesMax; over > 0 {
		lean.Error = cut(lean.Error, len(lean.Error)-over)
		dst = callLayout.appendEvent(dst[:start], KindCall, &lean)
	}
	return dst
}
