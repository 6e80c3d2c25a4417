package batch

import (
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/llm"
)

// The values of [Result.Status].
const (
	Success = "success"
	Failure = "error"
)

// Reply is the outcome of a batch.
type Reply struct {
	// Results are in the order of the prompts, one for each.
	Results []Result `json:"results"`
	// TotalTokens sums the reported tokens, of failed attempts too. Nil: none were reported.
	TotalTokens *Tokens `json:"total_tokens"`
	// TotalTimeMS is the time from the start to the last result, in milliseconds.
	TotalTimeMS int64 `json:"total_time_ms"`
}

// Tokens counts the tokens of a batch.
type Tokens struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// Result is the outcome of one prompt.
type Result struct {
	// Status is [Success] or [Failure].
	Status string `json:"status"`
	// Content is the answer; not empty if Status is [Success].
	Content string `json:"content,omitempty"`
	// Error is the error as text, Reason its machine-readable cause.
	Error  string     `json:"error,omitempty"`
	Reason llm.Reason `json:"reason,omitempty"`
	// Err is the error that Error is the text of; nil on success, and in a result that was read from JSON.
	Err error `json:"-"`
}

// Fault is one failed prompt in an error report.
type Fault struct {
	// Index is the prompt's place in the request, from 0.
	Index int `json:"index"`
	// Error and Reason are those of its [Result].
	Error  string     `json:"error"`
	Reason llm.Reason `json:"reason"`
}

// AllSucceeded reports whether every prompt was answered.
func (r *Reply) AllSucceeded() bool { return r.ErrorCount() == 0 }

// Successes returns the answers alone, in the order of their prompts.
func (r *Reply) Successes() []string {
	var contents []string
	for i := range r.Results {
		if r.Results[i].Status == Success {
			contents = append(contents, r.Results[i].Content)
		}
	}
	return contents
}

// ErrorCount is the number of prompts that were not answered.
func (r *Reply) ErrorCount() int { return len(r.Results) - len(r.Successes()) }

// ErrorReport lists the prompts that were not answered, in their order, and why.
func (r *Reply) ErrorReport() []Fault {
	var report []Fault
	for i := range r.Results {
		if v := &r.Results[i]; v.Status != Success {
			report = append(report, Fault{Index: i, Error: v.Error, Reason: v.Reason})
		}
	}
	return report
}

// ErrRequest is wrapped by the error of an invalid request: one without prompts, or
// with another number of contexts than of prompts. Match it with [errors.Is].
var ErrRequest = errors.New("not a batch of prompts")

// AllFailedError is the error of a batch of which no prompt was answered.
type AllFailedError struct {
	// Reply holds the results; its ErrorReport lists the error of each.
	Reply *Reply
}

// Total is the number of prompts.
func (e *AllFailedError) Total() int { return len(e.Reply.Results) }

// Error states the number of prompts and the first error.
func (e *AllFailedError) Error() string {
	return fmt.Sprintf("all %d prompts failed, the first with: %s", e.Total(), e.Reply.Results[0].Error)
}

// Unwrap returns the errors of the prompts, in their order.
func (e *AllFailedError) Unwrap() []error {
	errs := make([]error, 0, len(e.Reply.Results))
	for i := range e.Reply.Results {
		if err := e.Reply.Results[i].Err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// RateLimitedError is the error of a batch of which no prompt was answered, all for want of capacity.
type RateLimitedError struct {
	// Provider is the one without capacity.
	Provider string
	// RetryAfter is the longest wait that the provider asked for; 0: none.
	RetryAfter time.Duration
	// Reply holds the results.
	Reply *Reply
}

// Error names the provider and, if it asked for one, the wait.
func (e *RateLimitedError) Error() string {
	text := fmt.Sprintf("%s has no capacity for the batch", e.Provider)
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", retry after %v", e.RetryAfter)
	}
	return text
}

// TooLargeError is the error of a request with too many prompts.
type TooLargeError struct {
	// Size is the number of prompts, Max the maximum.
	Size, Max int
}

// Error states both numbers.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("batch has %d prompts, at most %d are allowed: send several batches", e.Size, e.Max)
}

// ReplyTooLargeError is the error of a batch whose answers are too large together.
type ReplyTooLargeError struct {
	// Size is the number of bytes when the batch ended, Max the maximum.
	Size, Max int
}

// Error states both numbers.
func (e *ReplyTooLargeError) Error() string {
	return fmt.Sprintf("answers take %d bytes, at most %d are allowed: send fewer prompts at a time", e.Size, e.Max)
}
