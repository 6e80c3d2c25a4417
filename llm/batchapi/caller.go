package batchapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

const (
	// smallBytes bounds a reply about one batch or file, or one page of a list. A page of
	// Gemini's may hold the results of other small batches.
	smallBytes = 64 << 20
	// pagesMax bounds the pages of a list that are read.
	pagesMax = 1000
)

// caller makes the exchanges that all providers have in common.
type caller struct{ client *llm.Client }

// uncertainError is an error after which nobody knows whether the server did what it was
// asked to do.
type uncertainError struct{ err error }

// Error implements error.
func (e *uncertainError) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *uncertainError) Unwrap() error { return e.err }

// call makes an exchange whose reply is a small JSON object, and reads it into v unless
// that is nil.
func (c caller) call(ctx context.Context, r *llm.RawRequest, v any) (*llm.RawReply, error) {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if r.Body != nil && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.MaxBytes = smallBytes
	reply, err := c.client.Exchange(ctx, r)
	if err == nil && v != nil {
		err = c.read(reply, v)
	}
	if err == nil {
		return reply, nil
	}
	return reply, c.judge(reply, err)
}

// get is call for GET.
func (c caller) get(ctx context.Context, url string, v any) (*llm.RawReply, error) {
	return c.call(ctx, &llm.RawRequest{Method: http.MethodGet, URL: url}, v)
}

// post is call for a POST of a JSON object, or of nothing.
func (c caller) post(ctx context.Context, url string, body []byte, v any) (*llm.RawReply, error) {
	r := &llm.RawRequest{Method: http.MethodPost, URL: url}
	if body != nil {
		r.Body, r.Size = bytes.NewReader(body), int64(len(body))
	}
	return c.call(ctx, r, v)
}

// remove deletes the object at url. It is no error if the object does not exist.
func (c caller) remove(ctx context.Context, url string) error {
	_, err := c.call(ctx, &llm.RawRequest{Method: http.MethodDelete, URL: url}, nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// judge completes the error of an exchange: a limit of the provider's queue has class
// Capacity, a 404 or 410 matches [ErrNotFound], and an error after which the server may
// have acted is an [uncertainError].
func (c caller) judge(reply *llm.RawReply, err error) error {
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		return err
	}
	if capacityCodes[e.Code] || capacityCodes[e.Type] {
		e.Class, e.Alike = llm.Capacity, ""
	}
	if mayHaveActed(reply, e) {
		return &uncertainError{err}
	}
	if e.Status == http.StatusNotFound || e.Status == http.StatusGone {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// mayHaveActed reports whether the server may have done what it was asked, though the
// exchange failed with e.
func mayHaveActed(reply *llm.RawReply, e *llm.Error) bool {
	switch {
	case reply.Status == 0:
		return reply.Connected
	case reply.Status/100 == 2, reply.Status == http.StatusRequestTimeout, reply.Status == 499:
		return true
	case reply.Status/100 != 5:
		return false
	}
	// A server that says in its own words that it has no room has not done anything.
	return e.Class != llm.Capacity || e.Code == "" && e.Type == ""
}

// read reads a reply with a 2xx status into v. A member of another type than it should
// have is left out.
func (c caller) read(reply *llm.RawReply, v any) error {
	body := bytes.TrimSpace(jsonbytes.TrimBOM(reply.Body))
	if len(body) == 0 || body[0] != '{' {
		return c.malformed(reply.Status, "not a JSON object: %.80q", excerpt.Of(body))
	}
	err := json.Unmarshal(body, v)
	if _, wrongType := errors.AsType[*json.UnmarshalTypeError](err); err != nil && !wrongType {
		return c.malformed(reply.Status, "%w", err)
	}
	return nil
}

// malformed returns the error of a reply that is not what the API answers.
func (c caller) malformed(status int, format string, args ...any) *llm.Error {
	return &llm.Error{
		Provider: c.client.Provider(), Status: status, Class: llm.Transient,
		Reason: llm.ReasonMalformedResponse, Origin: llm.OfServer,
		Err: fmt.Errorf("reply of the Batch API is "+format, args...),
	}
}

// stream opens a long reply.
func (c caller) stream(ctx context.Context, url string) (io.ReadCloser, error) {
	reply, err := c.client.Exchange(ctx, &llm.RawRequest{
		Method: http.MethodGet, URL: url, Header: http.Header{"Accept": {"*/*"}}, Stream: true,
	})
	if err != nil {
		return nil, c.judge(reply, err)
	}
	return reply.Stream, nil
}

// refuse returns why a whole batch was refused, from the provider's error objects. Errors
// that pass by waiting outrank errors of lines, and errors of the account outrank all.
func (c caller) refuse(faults []fault) *Refusal {
	refusal := new(Refusal)
	for _, f := range faults {
		_, err := llm.ParseReply(llm.ChatCompletions{}, llm.Known{}, time.Now(),
			cmp.Or(f.status, http.StatusBadRequest), nil, f.body())
		e, _ := errors.AsType[*llm.Error](err)
		e.Provider, e.Status, e.Facts = c.client.Provider(), 0, nil
		if e.Class == llm.Transient || capacityCodes[e.Code] {
			// The provider's own failure passes, too.
			e.Class, e.Origin, e.Alike = llm.Capacity, llm.OfRequest, ""
		}
		if n := f.Line.orZero(); n > 0 && e.Class == llm.Permanent &&
			!slices.Contains(refusal.Lines, n) {
			refusal.Lines = append(refusal.Lines, n)
		}
		if refusal.Err == nil || rank(e.Class) > rank(refusal.Err.Class) {
			refusal.Err = e
		}
	}
	if refusal.Err == nil {
		refusal.Err = &llm.Error{
			Provider: c.client.Provider(), Class: llm.Permanent, Reason: llm.ReasonAPICallFailed,
			Err: errors.New("the provider refused the batch without a reason"),
		}
	}
	if refusal.Capacity = refusal.Err.Class == llm.Capacity; refusal.Err.Class != llm.Permanent {
		refusal.Lines = nil
	}
	return refusal
}

// rank orders the classes by how much they affect the other rows.
func rank(c llm.Class) int { return map[llm.Class]int{llm.Capacity: 1, llm.Fatal: 2}[c] }

// capacityCodes are the words for a queue that is full, at any status.
var capacityCodes = map[string]bool{
	"token_limit_exceeded":   true, // OpenAI and Azure: enqueued tokens
	"rate_limit_exceeded":    true,
	"request_limit_exceeded": true,
	"RESOURCE_EXHAUSTED":     true,
}

// fault is one error object of a batch. Its status is the status of an equivalent reply, or
// 0 if there is none: then it counts as a 400.
type fault struct {
	Code    text  `json:"code"`
	Type    text  `json:"type"`
	Message text  `json:"message"`
	Line    count `json:"line"`

	status int
}

// body returns the object as the body of a reply.
func (f *fault) body() []byte {
	dst := jsonbytes.AppendString([]byte(`{"error":{"message":`), string(f.Message))
	if f.Code != "" {
		dst = jsonbytes.AppendString(append(dst, `,"code":`...), string(f.Code))
	}
	if f.Type != "" {
		dst = jsonbytes.AppendString(append(dst, `,"type":`...), string(f.Type))
	}
	return append(dst, "}}"...)
}
