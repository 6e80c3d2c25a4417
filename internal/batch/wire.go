package batch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/llm"
)

// The codes of service errors, in the header Nats-Service-Error-Code and in the body.
const (
	CodeAllFailed     = "all_failed"
	CodeTooLarge      = "batch_too_large"
	CodeBadRequest    = "bad_request"
	codeRateLimited   = "rate_limited"
	CodeReplyTooLarge = "reply_too_large"

	// Of deferred batches.

	CodeNotFound     = "not_found"
	CodeUnavailable  = "unavailable"
	codeStoreFull    = "store_full"
	codeBatchesAtMax = "too_many_batches"
)

// ErrorBody is the body of a service error: the code, a human-readable message, and the
// details of the code.
type ErrorBody struct {
	// Code is [CodeAllFailed] or another of the codes.
	Code string `json:"code"`
	// Error is the human-readable message.
	Error string `json:"error"`

	// Of all_failed. Fatal: no prompt can succeed until someone fixes the account, the
	// key or the address. ReportCut: the whole report would have been too large for a
	// message.
	Total     *int             `json:"total,omitempty"`
	Report    []llm.BatchFault `json:"report,omitempty"`
	ReportCut bool             `json:"report_cut,omitempty"`
	Fatal     bool             `json:"fatal,omitempty"`

	// ID of a deferred batch, of unavailable: it may have been stored.
	ID string `json:"id,omitempty"`

	// Of batch_too_large in prompts, of reply_too_large and store_full in bytes, and of
	// too_many_batches in batches.
	Size *int `json:"size,omitempty"`
	Max  *int `json:"max,omitempty"`

	// Of rate_limited.
	Provider string `json:"provider,omitempty"`
	*retryAfter
}

// retryAfter is present in the body of rate_limited alone, and null there if the provider
// reported no time.
type retryAfter struct {
	RetryAfterMS *int64 `json:"retry_after_ms"`
}

// busyError is why a request is refused while too many are in progress.
type busyError struct {
	most int
	what string
}

// Error reports when to retry.
func (e *busyError) Error() string {
	return fmt.Sprintf("%d %s are in progress in this stage: retry after %v", e.most, e.what,
		busyRetryAfter)
}

// wireRequest is a request as it comes: what may be null or left out is a pointer.
type wireRequest struct {
	Prompts     []*string `json:"prompts"`
	Contexts    []*string `json:"contexts"`
	MaxParallel *int      `json:"max_parallel"`
	Model       *string   `json:"model"`
}

// requestForm is what a request has, for errors.
const requestForm = `"prompts": [text, …], "contexts": [text or null, …], "max_parallel": whole ` +
	`number, "model": text`

// ReadRequest decodes a request. It is strict: a misspelt field would silently change
// what is sent. The error is human-readable.
func ReadRequest(data []byte) (*llm.BatchRequest, error) {
	var w wireRequest
	if err := decode(data, &w); err != nil {
		return nil, fmt.Errorf("request is not a batch in JSON: %w",
			explainJSON(err, "{"+requestForm+"}"))
	}
	return w.request()
}

// errNotUTF8 and errContinues are errors of [decode].
var (
	errNotUTF8   = errors.New("it is not in UTF-8")
	errContinues = errors.New("it continues after its JSON object")
)

// decode decodes the JSON of a request into w. A member that w does not have is an error.
func decode(data []byte, w any) error {
	if !utf8.Valid(data) {
		return errNotUTF8
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(w); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errContinues
	}
	return nil
}

// request is what was asked for.
func (w *wireRequest) request() (*llm.BatchRequest, error) {
	r := &llm.BatchRequest{Prompts: make([]string, len(w.Prompts)), Contexts: w.Contexts}
	for i, p := range w.Prompts {
		if p == nil {
			return nil, fmt.Errorf("prompt %d is null", i)
		}
		r.Prompts[i] = *p
	}
	if w.MaxParallel != nil {
		// 0 is the minimum here, but the default in llm.BatchRequest.
		r.MaxParallel = max(1, *w.MaxParallel)
	}
	if w.Model != nil {
		r.Model = *w.Model
	}
	return r, nil
}

// explainJSON rewrites the errors of package json that speak of Go types. form is what was
// wanted.
func explainJSON(err error, form string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		// Package json puts the name of the embedded struct before a member of it.
		where := cmp.Or(strings.TrimPrefix(e.Field, "wireRequest."), "the request")
		return fmt.Errorf(`%s is of type %.40s, want %s`, where, e.Value, form)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// encodeReply encodes the outcome of a batch: the body of the reply and, if it is a
// service error, its code and description. No body is larger than bytesMax: the report of
// errors is cut until it fits.
func encodeReply(
	provider string, reply *llm.BatchReply, err error, bytesMax int,
) (body []byte, code, description string) {
	if err == nil {
		if body = encodeJSON(reply); len(body) <= bytesMax {
			return body, "", ""
		}
		err = &llm.BatchReplyTooLargeError{Size: len(body), Max: bytesMax}
	}
	e := errorBody(provider, err)
	for body = encodeJSON(e); len(body) > bytesMax && len(e.Report) > 0; body = encodeJSON(e) {
		e.Report, e.ReportCut = e.Report[:len(e.Report)/2], true
	}
	return body, e.Code, e.Error
}

// errorBody is the service error that an error of a batch is answered with.
func errorBody(provider string, err error) *ErrorBody {
	if e, ok := errors.AsType[*llm.BatchTooLargeError](err); ok {
		return &ErrorBody{Code: CodeTooLarge, Error: e.Error(), Size: &e.Size, Max: &e.Max}
	}
	if e, ok := errors.AsType[*llm.BatchReplyTooLargeError](err); ok {
		return &ErrorBody{Code: CodeReplyTooLarge, Error: e.Error(), Size: &e.Size, Max: &e.Max}
	}
	if e, ok := errors.AsType[*llm.RateLimitedError](err); ok {
		body := &ErrorBody{
			Code: codeRateLimited, Error: e.Error(), Provider: e.Provider,
			retryAfter: &retryAfter{},
		}
		if ms := e.RetryAfter.Milliseconds(); ms > 0 {
			body.RetryAfterMS = &ms
		}
		return body
	}
	if e, ok := errors.AsType[*llm.AllFailedError](err); ok {
		total := e.Total()
		body := &ErrorBody{
			Code: CodeAllFailed, Error: fmt.Sprintf("all %d prompts failed", total), Total: &total,
			Report: e.Reply.ErrorReport(),
		}
		for _, err := range e.Unwrap() {
			failure, ok := errors.AsType[*llm.Error](err)
			body.Fatal = body.Fatal || ok && failure.Class == llm.Fatal
		}
		return body
	}
	if e, ok := errors.AsType[*deferredError](err); ok {
		return &e.body
	}
	if e, ok := errors.AsType[*busyError](err); ok {
		ms := busyRetryAfter.Milliseconds()
		return &ErrorBody{
			Code: codeRateLimited, Error: e.Error(), Provider: provider,
			retryAfter: &retryAfter{RetryAfterMS: &ms},
		}
	}
	return &ErrorBody{Code: CodeBadRequest, Error: err.Error()}
}

// encodeJSON encodes a reply or an error body, without the escapes that are for HTML.
func encodeJSON(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// Cannot happen: nothing in them can fail.
		return []byte(`{"error":` + fmt.Sprintf("%q", err.Error()) + `}`)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}
