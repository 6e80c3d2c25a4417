package llm

import (
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
)

// Class is what a failed attempt means for the next one.
type Class uint8

// The zero Class belongs to success, and to an attempt that its caller cancelled.
const (
	// Capacity: the server has no room now. Slow down and try again, for as long as it takes.
	Capacity Class = iota + 1
	// Transient: a passing failure. Try again a bounded number of times.
	Transient
	// Permanent: this row cannot succeed. Trying again changes nothing.
	Permanent
	// Fatal: no row can succeed until someone fixes the account, key, model or address.
	Fatal
)

// String returns the class as audit events spell it: "capacity", "transient",
// "permanent" or "fatal", and "" for the zero Class.
func (c Class) String() string { return classNames[c] }

var classNames = map[Class]string{Capacity: "capacity", Transient: "transient", Permanent: "permanent", Fatal: "fatal"}

// Origin is where a transient or permanent error comes from: the request itself, or something else.
type Origin uint8

// The zero Origin is OfRequest.
const (
	// OfRequest: the provider answered about this very request.
	OfRequest Origin = iota
	// OfServer: the server is unhealthy. It answered 5xx, HTML, a cut or an empty body, or not within the time-out.
	OfServer
	// OfNetwork: no server was reached, or the connection broke before a byte of the reply: refused, no name, TLS cut,
	// no connection within the time-out, reset.
	OfNetwork
	// OfHost: this machine lacks a descriptor, port, buffer, memory or route. Nothing was sent.
	OfHost
)

// Reason is the machine-readable cause of an error result.
type Reason string

// The reasons that a result's error object may carry.
const (
	ReasonInvalidRow              Reason = "invalid_row"
	ReasonTemplateRenderingFailed Reason = "template_rendering_failed"
	ReasonAPICallFailed           Reason = "api_call_failed"
	ReasonInvalidJSONResponse     Reason = "invalid_json_response"
	ReasonEmptyChoices            Reason = "empty_choices"
	ReasonEmptyContent            Reason = "empty_content"
	ReasonMalformedResponse       Reason = "malformed_response"
	ReasonContentFiltered         Reason = "content_filtered"
	ReasonRefused                 Reason = "refused"
	ReasonTruncated               Reason = "truncated"
	ReasonSchemaValidationFailed  Reason = "schema_validation_failed"
	ReasonResponseTooLarge        Reason = "response_too_large"
	ReasonRowTooLarge             Reason = "row_too_large"
	ReasonRowTimeout              Reason = "row_timeout"
	ReasonResultTooLarge          Reason = "result_too_large"
	ReasonInternalError           Reason = "internal_error"
)

// The further reasons that a result of a batch may carry.
const (
	// ReasonRateLimited: the provider had no capacity in all attempts.
	ReasonRateLimited Reason = "rate_limited"
	// ReasonCancelled: the batch ended before the prompt was answered.
	ReasonCancelled Reason = "cancelled"
)

// Error is the one error type of calls, templates and replies: what failed, what it means, and the facts that the
// reason promises. It never holds a credential.
type Error struct {
	// Provider is the client's name; empty where no provider was called.
	Provider string
	// Status is the HTTP status; 0: no reply arrived.
	Status int
	// Class is zero only when the caller cancelled the attempt.
	Class Class
	// Reason is never empty in an error with a Class.
	Reason Reason
	// Origin is, with class Transient or Permanent, where the error comes from.
	Origin Origin
	// Alike names, with class Transient or Permanent, an error that every request meets where the settings are wrong,
	// the same name for the same verdict: "400 invalid_request_error unknown_parameter", "html",
	// "malformed_response". At most 100 bytes, never any part of a message. Empty: not caused by settings.
	Alike string
	// Code and Type are the provider's own words; empty: none were sent.
	Code, Type string
	// Wait is what the server reported about when to retry.
	Wait
	// Facts are the further members of the result's error object, by their JSON names.
	// Values are nil, strings, numbers, []string or json.RawMessage.
	Facts map[string]any
	// Err is what happened. Never nil.
	Err error
}

// Error implements error: provider, status and code, then what happened.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Provider != "" {
		b.WriteString(e.Provider)
		b.WriteString(": ")
	}
	if e.Status != 0 && e.Status != 200 {
		b.WriteString(strconv.Itoa(e.Status))
		if code := e.providerCode(); code != "" {
			b.WriteByte(' ')
			b.WriteString(code)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// providerCode is the provider's most specific code of the error.
func (e *Error) providerCode() string {
	if e.Code != "" {
		return excerpt.Of(e.Code)
	}
	return excerpt.Of(e.Type)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
