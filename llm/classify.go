package llm

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
)

// Outcome is all that [Classify] may look at: one attempt in words that every
// wire format shares. Its zero value is no outcome; a reply with status 200
// that is fit for use is Outcome{Status: 200}.
type Outcome struct {
	// Err says why no whole reply came. Nil: it came.
	Err error
	// Status is the HTTP status. 0: none came.
	Status int
	// Header holds the reply's headers. May be nil.
	Header http.Header
	// Form says what the body was.
	Form Form
	// Fault is the error object in the body. Nil: there was none.
	Fault *Fault
	// Finish says why the model stopped.
	Finish Finish
	// Known is what the caller knows beside this attempt.
	Known Known
}

// Known is what an attempt alone cannot tell.
type Known struct {
	// Proven says that this client has had a success before, so that address,
	// key and model were right once.
	Proven bool
	// RowModel says that the row chose the model: if that is unknown, the row
	// is to blame and not the stage.
	RowModel bool
	// AcceptTruncated takes replies that end at the token limit.
	AcceptTruncated bool
}

// Form says what the body of a reply was.
type Form uint8

// The zero Form is a reply in the wire format, or an error object.
const (
	FormReply     Form = iota
	FormNotJSON        // no JSON, cut short, or followed by more
	FormMalformed      // JSON, but not of the wire format's shape
	FormNoChoices      // an empty list of answers
	FormEmpty          // an answer without text
	FormTooLarge       // longer than the bound
)

// Finish says why the model stopped.
type Finish uint8

// The zero Finish is a natural end, or a reason that means nothing to us.
const (
	FinishStop    Finish = iota
	FinishLength         // at the token limit or the end of the context window
	FinishFilter         // stopped by a content filter
	FinishRefusal        // the model refused
)

// ErrTimeout is the cause of an attempt that took longer than its time-out.
var ErrTimeout = errors.New("attempt timed out")

// proxyError is a proxy's refusal to open a tunnel.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return "proxy answered " + http.StatusText(e.status)
}

// CapacityStatus says whether an HTTP status is one of the three by which
// servers tell that they have no room now: 429, 503 and 529.
func CapacityStatus(status int) bool {
	return status == 429 || status == 503 || status == 529
}

// Classify decides what an attempt means, from status, typed fields and
// documented headers, never from the wording of a message: the three sentences
// that one provider each documents in place of a typed field have become fields
// of [Fault] before. It returns zeros for success and for an attempt that the
// caller cancelled. It is pure, and allocates nothing on success.
func Classify(o *Outcome) (Class, Reason) {
	switch {
	case o.Err != nil && (o.Status == 0 || o.Status/100 == 2):
		// An error status means the same whether its body came whole or not.
		return classifyErr(o)
	case o.Status/100 != 2:
		class, reason := classifyStatus(o, o.Status)
		return heed(o.Header, class), reason
	case o.Fault != nil:
		return classifyStatus(o, o.Fault.Status)
	}
	return classifyReply(o)
}

// classifyReply judges a reply with a 2xx status and no error object.
func classifyReply(o *Outcome) (Class, Reason) {
	switch o.Form {
	case FormTooLarge:
		return Permanent, ReasonResponseTooLarge
	case FormNotJSON:
		return Transient, ReasonInvalidJSONResponse
	case FormMalformed:
		return Transient, ReasonMalformedResponse
	case FormReply, FormNoChoices, FormEmpty:
	}
	switch o.Finish {
	case FinishFilter:
		return Permanent, ReasonContentFiltered
	case FinishRefusal:
		return Permanent, ReasonRefused
	case FinishLength:
		// Without text there is nothing to accept: the reasoning took all tokens.
		if !o.Known.AcceptTruncated || o.Form == FormEmpty {
			return Permanent, ReasonTruncated
		}
	case FinishStop:
	}
	switch o.Form {
	case FormNoChoices:
		return Transient, ReasonEmptyChoices
	case FormEmpty:
		return Transient, ReasonEmptyContent
	case FormReply, FormNotJSON, FormMalformed, FormTooLarge:
	}
	return 0, ""
}

// classifyStatus judges an error by the words of its error object first, since
// one status may mean several things, then by status: that of the reply, or
// the one named by an error object inside a 200 (0: none named).
func classifyStatus(o *Outcome, status int) (Class, Reason) {
	if o.Fault != nil {
		if class, reason := classifyFault(o, status); class != 0 {
			return class, reason
		}
	}
	switch status {
	case 0:
		return Transient, ReasonAPICallFailed // an error object of unknown words
	case 429, 503, 529:
		return Capacity, ReasonAPICallFailed
	case 401, 402, 403, 407:
		return Fatal, ReasonAPICallFailed
	case 404:
		// Most servers answer an unknown model and a wrong address alike.
		return unknownModel(o.Known), ReasonAPICallFailed
	case 408, 409, 424, 425, 499:
		return Transient, ReasonAPICallFailed
	case 501, 505, 506, 508, 510, 511:
		return Permanent, ReasonAPICallFailed // the same request meets the same answer
	}
	switch status / 100 {
	case 3:
		return Fatal, ReasonAPICallFailed
	case 4:
		return Permanent, ReasonAPICallFailed
	}
	return Transient, ReasonAPICallFailed
}

// classifyFault judges by the typed fields of an error object; a zero Class
// leaves the verdict to the status.
func classifyFault(o *Outcome, status int) (Class, Reason) {
	f := o.Fault
	switch {
	case f.Flagged:
		return Permanent, ReasonContentFiltered
	case f.PerDay, f.SpendLimit:
		return Fatal, ReasonAPICallFailed
	case f.UnknownModel:
		return unknownModel(o.Known), ReasonAPICallFailed
	case f.Oversized:
		return Permanent, ReasonAPICallFailed
	}
	// A status that speaks of this request alone is not turned into a limit.
	mayBeLimit := status == 0 || status == 402 || status == 429 || status >= 500
	// The narrowest word decides: a detail refines the code, the code the type.
	for _, word := range [...]string{f.Detail, f.Code, f.Type} {
		switch words[word] {
		case meansNothing:
		case meansCapacity:
			if mayBeLimit {
				return Capacity, ReasonAPICallFailed
			}
		case meansTransient:
			if status == 0 {
				return Transient, ReasonAPICallFailed
			}
		case meansPermanent:
			return Permanent, ReasonAPICallFailed
		case meansFatal:
			return Fatal, ReasonAPICallFailed
		case meansFiltered:
			return Permanent, ReasonContentFiltered
		case meansRefused:
			return Permanent, ReasonRefused
		case meansUnknownModel:
			return unknownModel(o.Known), ReasonAPICallFailed
		case meansForbidden:
			// A key that was good a moment ago is not forbidden to ask: the row is.
			if o.Known.Proven {
				return Permanent, ReasonAPICallFailed
			}
		}
	}
	return 0, ""
}

// unknownModel is the class of an unknown model, and of a 404 in general: the
// stage's own mistake until an attempt has succeeded, the row's afterwards.
func unknownModel(k Known) Class {
	if k.Proven || k.RowModel {
		return Permanent
	}
	return Fatal
}

// heed lets the x-should-retry header of OpenAI and Anthropic move an error
// between transient and permanent. Capacity stays: a limit passes, whatever
// the advice about one call; and so does a fatal error, which a retry cannot
// mend.
func heed(h http.Header, class Class) Class {
	if class != Transient && class != Permanent {
		return class
	}
	switch h.Get("X-Should-Retry") {
	case "true":
		return Transient
	case "false":
		return Permanent
	}
	return class
}

// classifyErr judges an attempt whose reply did not come, or not whole.
func classifyErr(o *Outcome) (Class, Reason) {
	err := o.Err
	if errors.Is(err, context.Canceled) {
		return 0, ""
	}
	if errors.Is(err, ErrTimeout) {
		return Transient, ReasonAPICallFailed
	}
	if isTLS(err, o.Known.Proven) {
		return Fatal, ReasonAPICallFailed
	}
	if e, ok := errors.AsType[*proxyError](err); ok {
		return classifyStatus(&Outcome{Known: o.Known}, e.status)
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.IsNotFound && !o.Known.Proven {
			return Fatal, ReasonAPICallFailed
		}
		return Transient, ReasonAPICallFailed
	}
	// A server that was there and now does not take connections has its queue
	// of them full.
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" && e.Timeout() && o.Known.Proven {
		return Capacity, ReasonAPICallFailed
	}
	return Transient, ReasonAPICallFailed
}

// isTLS says whether the server's certificate was refused, or the other side
// refused ours or does not speak TLS. A certificate may expire at any time; the
// others, once a call has succeeded, are accidents.
func isTLS(err error, proven bool) bool {
	if wraps[*tls.CertificateVerificationError](err) {
		return true
	}
	return !proven && (errors.Is(err, http.ErrSchemeMismatch) ||
		wraps[tls.RecordHeaderError](err) || wraps[tls.AlertError](err))
}

func wraps[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
