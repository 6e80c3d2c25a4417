package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batch"
)

// Codes of the service's errors, in the header Nats-Service-Error-Code and in the body.
const (
	BatchAllFailed     = "all_failed"
	BatchTooLarge      = "batch_too_large"
	batchRateLimited   = "rate_limited"
	BatchBadRequest    = "bad_request"
	batchReplyTooLarge = "reply_too_large"
)

// BatchErrorBody is the body of a service error: the code, what happened, and the facts of the code.
type BatchErrorBody struct {
	Code  string `json:"code"`
	Error string `json:"error"`
	// Of all_failed. Fatal says that no prompt can succeed until somebody mends the account, the key or the address.
	// ReportCut says that the report would have been too large.
	Total     *int          `json:"total,omitempty"`
	Report    []batch.Fault `json:"report,omitempty"`
	ReportCut bool          `json:"report_cut,omitempty"`
	Fatal     bool          `json:"fatal,omitempty"`
	// Of batch_too_large and reply_too_large.
	Size *int `json:"size,omitempty"`
	Max  *int `json:"max,omitempty"`
	// Of rate_limited. The time is null where the provider told none.
	Provider string `json:"provider,omitempty"`
	*batchRetryAfter
}

type batchRetryAfter struct {
	RetryAfterMS *int64 `json:"retry_after_ms"`
}

// batchRequestWire is a request as it comes: what may be null or left out is a pointer.
type batchRequestWire struct {
	Prompts     []*string `json:"prompts"`
	Contexts    []*string `json:"contexts"`
	MaxParallel *int      `json:"max_parallel"`
	Model       *string   `json:"model"`
}

// ReadBatchRequest decodes a request. It is strict: a field that is misspelt would change what is asked in silence.
func ReadBatchRequest(data []byte) (*batch.Request, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("request is not in UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var w batchRequestWire
	if err := dec.Decode(&w); err != nil {
		return nil, fmt.Errorf("request is not a batch in JSON: %w", mendJSON(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("request goes on after its JSON object")
	}
	r := &batch.Request{Prompts: make([]string, len(w.Prompts)), Contexts: w.Contexts}
	for i, p := range w.Prompts {
		if p == nil {
			return nil, fmt.Errorf("prompt %d is null", i)
		}
		r.Prompts[i] = *p
	}
	if w.MaxParallel != nil {
		r.MaxParallel = max(1, *w.MaxParallel) // 0 is the least, and not the default
	}
	if w.Model != nil {
		r.Model = *w.Model
	}
	return r, nil
}

// mendJSON says what to do about the errors of package json that speak of Go.
func mendJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := e.Field
		if where == "" {
			where = "the request"
		}
		return fmt.Errorf(`%s is a %.40s, want {"prompts": [text, …], "contexts": [text or null, …], "max_parallel": whole number, "model": text}`, where, e.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// batchReply encodes the outcome of a batch: the body of the reply and, where it is a service error, its code and
// description. No body is larger than bytesMax.
func batchReply(provider string, reply *batch.Reply, err error, bytesMax int) (body []byte, code, description string) {
	if err == nil {
		if body = encodeJSON(reply); len(body) <= bytesMax {
			return body, "", ""
		}
		err = &batch.ReplyTooLargeError{Size: len(body), Max: bytesMax}
	}
	e := batchErrorOf(provider, err)
	for body = encodeJSON(e); len(body) > bytesMax && len(e.Report) > 0; body = encodeJSON(e) {
		e.Report, e.ReportCut = e.Report[:len(e.Report)/2], true
	}
	return body, e.Code, e.Error
}

// batchErrorOf sorts the error of a batch.
func batchErrorOf(provider string, err error) *BatchErrorBody {
	if e, ok := errors.AsType[*batch.TooLargeError](err); ok {
		return &BatchErrorBody{Code: BatchTooLarge, Error: e.Error(), Size: &e.Size, Max: &e.Max}
	}
	if e, ok := errors.AsType[*batch.ReplyTooLargeError](err); ok {
		return &BatchErrorBody{Code: batchReplyTooLarge, Error: e.Error(), Size: &e.Size, Max: &e.Max}
	}
	if e, ok := errors.AsType[*batch.RateLimitedError](err); ok {
		body := &BatchErrorBody{Code: batchRateLimited, Error: e.Error(), Provider: e.Provider, batchRetryAfter: &batchRetryAfter{}}
		if ms := e.RetryAfter.Milliseconds(); ms > 0 {
			body.RetryAfterMS = &ms
		}
		return body
	}
	if e, ok := errors.AsType[*batch.AllFailedError](err); ok {
		total := e.Total()
		body := &BatchErrorBody{Code: BatchAllFailed, Error: fmt.Sprintf("all %d prompts failed", total), Total: &total, Report: e.Reply.ErrorReport()}
		for _, err := range e.Unwrap() {
			fault, ok := errors.AsType[*llm.Error](err)
			body.Fatal = body.Fatal || ok && fault.Class == llm.Fatal
		}
		return body
	}
	if e, ok := errors.AsType[*batchesBusyError](err); ok {
		ms := batchesBusyWait.Milliseconds()
		return &BatchErrorBody{Code: batchRateLimited, Error: e.Error(), Provider: provider, batchRetryAfter: &batchRetryAfter{RetryAfterMS: &ms}}
	}
	return &BatchErrorBody{Code: BatchBadRequest, Error: err.Error()}
}

// encodeJSON encodes a value of ours, without the escapes that are for HTML.
func encodeJSON(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(`{"error":` + fmt.Sprintf("%q", err.Error()) + `}`) // there is nothing in them that could fail
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}
