package auditlog

import (
	"strconv"
	"time"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

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
	// CallUnknown is a call that was cut off after it had been sent. It may have been answered, and billed.
	CallUnknown CallStatus = "unknown"
)

// Call is the event of one HTTP attempt, retries too. Empty strings, the zero numbers named below and empty bodies are
// written as null.
type Call struct {
	Header
	// StateID names the row, see [StateID]. Empty for the call of a batched request.
	StateID string
	// Owner names the term of ownership in which the call was made.
	Owner string
	// CallID is the call's permanent name.
	CallID string
	// CallIndex counts the calls of this row in this term, from 0.
	CallIndex int
	// Sequence is the row's sequence in the input stream; 0 for the call of a batched request.
	Sequence uint64
	// BatchID names the batched request; for a row it is the provider's id of the batch that answered it, with Lane; else
	// empty.
	BatchID string
	// Item is which element of its row the call was for, from 0; nil: the whole row, and then it is not in the JSON. StateID
	// is that of the element: see [ItemStateID].
	Item *int
	// Lane is [LaneBatch] where a provider's Batch API answered; empty: a live call, and then it is not in the JSON.
	Lane string
	// Unused is set, with Lane, where no row takes the answer: its row went live before the answer came. It was billed all
	// the same. It is in the JSON only where it is true, and CallIndex is 0.
	Unused bool
	// Provider and Model are the ones called.
	Provider, Model string
	// Status is how the call ended.
	Status CallStatus
	// StatusCode is the HTTP status; 0: no reply came.
	StatusCode int
	// ErrorClass is "capacity", "transient", "permanent" or "fatal"; empty: there was no error, or no verdict.
	ErrorClass string
	// Latency is the time from sending to the end of the reply.
	Latency time.Duration
	// DispatchDelay is the throttle's delay between calls when this one was sent.
	DispatchDelay time.Duration
	// RetryAfter is the wait that the server asked for; 0: it asked for none.
	RetryAfter time.Duration
	// RequestHash and ResponseHash are SHA-256 in hex over the bodies as they went over the wire, secrets aside: over
	// Request and Response before these are left out or cut.
	RequestHash, ResponseHash string
	// Request and Response are the bodies. A body that is JSON becomes part of the event, its bytes kept; any other is
	// written as a string, bad UTF-8 replaced. [Decode] returns the JSON value in either case.
	Request, Response []byte
	// Truncated is set when the bodies were left out, or the error cut, because the event was too large.
	Truncated bool
	// Usage is what the server reported; nil: nothing.
	Usage *Usage
	// Error is the error message; empty on success.
	Error string
}

// MsgID returns the event's id for the Nats-Msg-Id header, see [MsgID]. Where the call has no row, its batch stands in. A
// line of a provider's batch is one event for each owner that reads it, however often it is read.
func (c *Call) MsgID() string {
	if c.Lane != "" {
		return MsgID(c.StateID+"/"+c.CallID, c.Owner, KindCall, 0)
	}
	id := c.StateID
	if id == "" {
		id = c.BatchID
	}
	return MsgID(id, c.Owner, KindCall, c.CallIndex)
}

// AppendJSON appends the event to dst and returns the extended slice. With a dst that is large enough it allocates
// nothing.
//
// An event that would take more than bytesMax bytes (0 or less: no bound) is written without bodies and with truncated
// set. If that is not enough the error text is cut. What then remains is ids and numbers; they are written whatever
// they take.
func (c *Call) AppendJSON(dst []byte, payloads Payloads, bytesMax int) []byte {
	start := len(dst)
	lean := *c
	if payloads != PayloadsFull {
		lean.Request, lean.Response = nil, nil
	}
	if payloads == PayloadsNone {
		lean.RequestHash, lean.ResponseHash = "", ""
	}
	// The first test keeps a body that cannot fit from being copied, the second counts everything.
	if bodies := len(lean.Request) + len(lean.Response); bytesMax <= 0 || bodies <= bytesMax {
		dst = lean.append(dst)
		if bytesMax <= 0 || len(dst)-start <= bytesMax {
			return dst
		}
	}
	lean.Request, lean.Response, lean.Truncated = nil, nil, true
	dst = lean.append(dst[:start])
	if over := len(dst) - start - bytesMax; over > 0 {
		lean.Error = cut(lean.Error, len(lean.Error)-over)
		dst = lean.append(dst[:start])
	}
	return dst
}

func (c *Call) append(dst []byte) []byte {
	dst = c.appendHead(dst, KindCall)
	dst = stringOrNull(append(dst, `,"state_id":`...), c.StateID)
	dst = stringOrNull(append(dst, `,"owner":`...), c.Owner)
	dst = stringOrNull(append(dst, `,"call_id":`...), c.CallID)
	dst = strconv.AppendInt(append(dst, `,"call_index":`...), int64(c.CallIndex), 10)
	dst = numberOrNull(append(dst, `,"sequence":`...), c.Sequence)
	if c.Item != nil {
		dst = strconv.AppendInt(append(dst, `,"item":`...), int64(*c.Item), 10)
	}
	dst = stringOrNull(append(dst, `,"batch_id":`...), c.BatchID)
	if c.Lane != "" {
		dst = jsonbytes.AppendEscaped(append(dst, `,"lane":`...), c.Lane)
	}
	if c.Unused {
		dst = append(dst, `,"unused":true`...)
	}
	dst = stringOrNull(append(dst, `,"provider":`...), c.Provider)
	dst = stringOrNull(append(dst, `,"model":`...), c.Model)
	dst = jsonbytes.AppendEscaped(append(dst, `,"status":`...), string(c.Status))
	dst = numberOrNull(append(dst, `,"status_code":`...), c.StatusCode)
	dst = stringOrNull(append(dst, `,"error_class":`...), c.ErrorClass)
	dst = millis(append(dst, `,"latency_ms":`...), c.Latency)
	dst = millis(append(dst, `,"dispatch_delay_ms":`...), c.DispatchDelay)
	dst = millisOrNull(append(dst, `,"retry_after_ms":`...), c.RetryAfter)
	dst = stringOrNull(append(dst, `,"request_hash":`...), c.RequestHash)
	dst = stringOrNull(append(dst, `,"response_hash":`...), c.ResponseHash)
	dst = body(append(dst, `,"request":`...), c.Request)
	dst = body(append(dst, `,"response":`...), c.Response)
	dst = strconv.AppendBool(append(dst, `,"truncated":`...), c.Truncated)
	dst = usage(append(dst, `,"usage":`...), c.Usage)
	dst = stringOrNull(append(dst, `,"error":`...), c.Error)
	return append(dst, '}')
}
