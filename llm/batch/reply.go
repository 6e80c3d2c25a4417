package batch

import (
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/llm"
)

// The values of Result.Status.
const (
	Success = "success"
	Failure = "error"
)

// Reply is what became of a batch.
type Reply struct {
	// Results are in the order of the prompts, one for each.
	Results []Result `json:"results"`
	// TotalTokens sums the reported tokens, of failed attempts too. Nil:
	// none were reported.
	TotalTokens *Tokens `json:"total_tokens"`
	// TotalTimeMS is the time from the start to the last result, in
	// milliseconds.
	TotalTimeMS int64 `json:"total_time_ms"`
}

// Tokens counts the tokens of a batch.
type Tokens struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// Result is what became of one prompt.
type Result struct {
	// Status is [Success] or [Failure].
	Status string `json:"status"`
	// Content is the answer, never empty beside Success.
	Content string `json:"content,omitempty"`
	// Error says what went wrong, Reason in one word.
	Error  string     `json:"error,omitempty"`
	Reason llm.Reason `json:"reason,omitempty"`
	// Err is the error behind Error; nil on success, and in a result that was
	// read from JSON.
	Err error `json:"-"`
}

// Fault is one entry of an error report.
type Fault struct {
	// Index is the prompt's place in the request, from 0.
	Index  int        `json:"index"`
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

// ErrRequest says that a request is not one: it has no prompts, or not as
// many contexts as prompts. To be matched with [errors.Is].
var ErrRequest = errors.New("not a batch of prompts")

// AllFailedError says that no prompt of a batch was answered.
type AllFailedError struct {
	// Reply holds the results. Its ErrorReport says what went wrong with each.
	Reply *Reply
}

// Total is the number of prompts.
func (e *AllFailedError) Total() int { return len(e.Reply.Results) }

// Error gives the number of prompts and the first error.
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

// RateLimitedError says that no prompt of a batch was answered, all for want of
// capacity.
type RateLimitedError struct {
	// Provider had none.
	Provider string
	// RetryAfter is the longest wait that it asked for; 0: it asked for none.
	RetryAfter time.Duration
	// Reply holds the results.
	Reply *Reply
}

// Error names the provider.
func (e *RateLimitedError) Error() string {
	text := fmt.Sprintf("%s has no capacity for the batch", e.Provider)
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", ask again after %v", e.RetryAfter)
	}
	return text
}

// TooLargeError says that a request has too many prompts.
type TooLargeError struct {
	// Size is how many there are, Max how many there may be.
	Size, Max int
}

// Error gives both.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("batch has %d prompts, at most %d are allowed: send several batches", e.Size, e.Max)
}

// ReplyTooLargeError says that the answers to a batch are too large
// together.
type ReplyTooLargeError struct {
	// Size is how many bytes there were when no further prompt was sent, Max
	// how many there may be.
	Size, Max int
}

// Error gives both.
func (e *ReplyTooLargeError) Error() string {
	return fmt.Sprintf("answers take %d bytes, at most %d are allowed: send fewer prompts at a time", e.Size, e.Max)
}
