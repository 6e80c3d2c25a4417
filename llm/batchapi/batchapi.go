// Package batchapi speaks the providers' Batch APIs: many requests in one job that the
// provider answers within a day, for half the price.
//
// The providers' shapes and rules differ; [API] is the part that they have in common. It
// makes single HTTP exchanges, keeps nothing between them, and never retries: the caller
// decides by the [llm.Error]. Only Get, Find and Results are idempotent. A batch carries
// the caller's token, so that Find still finds it if the reply to its creation was lost.
package batchapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/llm-stage/stage/llm"
)

// API is the Batch API of one provider. It is safe for concurrent use.
type API interface {
	// Limits are the provider's own limits on a batch, and what else differs between
	// providers.
	Limits() Limits
	// AppendLine appends a request, with its media if they are loaded, to the body of a
	// batch, as one line with its separator. id is the line's custom id.
	AppendLine(dst []byte, id string, p *llm.Prepared) []byte
	// Upload stores the lines as a file at the provider, named after the token, and
	// returns its id. With [Limits.Inline] it must not be called: Create sends the lines.
	Upload(ctx context.Context, token string, lines Lines) (file string, err error)
	// Create submits a batch. After an error without a verdict about the request (no
	// answer, a truncated one, 5xx) the batch may exist all the same, see [Uncertain].
	Create(ctx context.Context, job Job) (Batch, error)
	// Get returns the state of a batch. The error matches [ErrNotFound] where the
	// provider knows no such batch, which right after Create proves nothing.
	Get(ctx context.Context, id string) (Batch, error)
	// Find returns the account's batches that may have been created with the token, at
	// since or later. With [Limits.Tokens] these are the batches that carry it. Otherwise
	// they are the batches whose time and number of rows fit, and only the ids of their
	// results tell them apart. The provider's list may lag.
	Find(ctx context.Context, token string, since time.Time, rows int) ([]Batch, error)
	// Results calls f for each line of the results of a batch that has ended, including
	// the lines of its error file, in any order. It returns the first error of f. It
	// reads as a stream, and holds no more than one line at a time. A stream that is cut
	// returns an error after the lines before the cut.
	Results(ctx context.Context, b Batch, f func(Line) error) error
	// Cancel asks to cancel a batch, which may take minutes. Answers that exist by then
	// are billed and can be fetched.
	Cancel(ctx context.Context, id string) error
	// Withdraw deletes the input files of the token that are at the provider, so that no
	// creation that is still on its way can succeed, and reports whether that is certain
	// from now on. With [Limits.Inline] it never is.
	Withdraw(ctx context.Context, token string, since time.Time) (certain bool, err error)
	// Delete deletes the files of a batch, or the batch itself if results live in it. It
	// is no error if they are gone already.
	Delete(ctx context.Context, b Batch) error
}

// Limits are the limits of a provider.
type Limits struct {
	// Rows and Bytes bound one batch.
	Rows  int
	Bytes int64
	// Inline says that Create sends the lines itself, and that there is no file.
	Inline bool
	// Tokens says that a batch carries the token where a list shows it.
	Tokens bool
	// Poll is the least time between two looks at a batch. It is 0 if any will do.
	Poll time.Duration
	// Window is how long a batch may take until the provider ends it. It is 0 if the
	// provider never does.
	Window time.Duration
	// OneModel says that all lines of a batch must name the same model.
	OneModel bool
}

// Lines is the body of a batch. Each call of Open returns it from its beginning.
type Lines struct {
	Open func() io.Reader
	Size int64
	Rows int
}

// Job is what Create submits.
type Job struct {
	Token string
	Model string
	// File is what Upload returned. With [Limits.Inline] it is empty, and Lines is sent.
	File  string
	Lines Lines
}

// Batch is what a provider says of a batch.
type Batch struct {
	ID    string
	Token string // or "" if the list does not show it
	State State
	// Created is the provider's time.
	Created time.Time
	// Input, Output and Errors are the provider's names of the batch's files, as file ids
	// or URLs. Each is empty while there is no such file.
	Input, Output, Errors string
	// Rows, Answered and Failed are the provider's counts. Each is -1 if it is not
	// reported.
	Rows, Answered, Failed int
	// Refusal says why the provider refused the batch as a whole, in state [Refused].
	Refusal *Refusal
	// RetryAfter is how long the provider asks to wait before the next look. It is 0 if the
	// provider does not ask for a wait.
	RetryAfter time.Duration
}

// State is the state of a batch. The providers' words for it are read leniently.
type State string

const (
	// Running is a batch that is not over: validating, in progress, finalizing,
	// cancelling.
	Running State = "running"
	// Ended is a batch that is over, and has results for all of its rows, or at least for
	// some.
	Ended State = "ended"
	// Expired is like Ended, but the window was over before all rows had an answer.
	Expired State = "expired"
	// Cancelled is like Ended, but somebody cancelled it before all rows had an answer.
	Cancelled State = "cancelled"
	// Refused is a batch that is over because the provider did not accept it. No row was
	// answered, and nothing was billed.
	Refused State = "refused"
)

// Over reports whether nothing will change any more.
func (s State) Over() bool { return s != Running }

// Refusal is why a batch was refused as a whole, at once by Create or later.
type Refusal struct {
	// Capacity means that the provider's queue has too many tokens, rows or batches
	// already. The batch may be submitted again later.
	Capacity bool
	// Lines are the numbers of the bad lines, from 1. It is empty if the provider names
	// none.
	Lines []int
	// Err has class Capacity if Capacity is set, and otherwise class Permanent or Fatal.
	Err *llm.Error
}

// Line is one line of the results.
type Line struct {
	ID   string // custom id; empty with kind Garbled
	Kind Kind
	// Status and Body are the status and body that a live call would have returned; Body
	// may also be an error object. Status is 0 if the provider reports none. Body is raw
	// and may hold secrets: pass it to [llm.Client.ReadReply], which removes them. It
	// belongs to the caller. If the line is too long, Body is its beginning, which is
	// longer than any reply may be.
	Status int
	Body   []byte
}

// Kind is what a line of results is.
type Kind uint8

const (
	// Answered has the reply, or the error, of the model's API.
	Answered Kind = iota + 1
	// Lapsed was not answered since the batch expired or was cancelled. Nothing was
	// billed.
	Lapsed
	// Garbled is no line of a result.
	Garbled
)

// ErrNotFound is what an error matches where the provider knows no such batch or file.
var ErrNotFound = errors.New("the provider does not know it")

// New returns the Batch API of the client's provider. Its error names a provider that has
// none.
func New(client *llm.Client) (API, error) {
	c := caller{client}
	switch client.Provider() {
	case llm.OpenAI, llm.Mock:
		return newOpenAI(c, "/v1"+endpointOf(client)), nil
	case llm.OpenAIResponses:
		return newOpenAI(c, "/v1/responses"), nil
	case llm.Azure:
		return newAzure(c)
	case llm.Anthropic:
		return &messageBatches{c}, nil
	case llm.Gemini:
		return &geminiBatches{c}, nil
	}
	return nil, fmt.Errorf("provider %q has no Batch API that the batch lane can use; use %s, "+
		"%s, %s, %s or %s, or leave the lane live",
		client.Provider(), llm.OpenAI, llm.OpenAIResponses, llm.Azure, llm.Anthropic, llm.Gemini)
}

// endpointOf returns the endpoint of OpenAI's and Azure's lines, without the version.
func endpointOf(client *llm.Client) string {
	if client.Task() == llm.TaskEmbed {
		return "/embeddings"
	}
	return "/chat/completions"
}

// Uncertain reports whether the request that failed with err, an error of Create, may
// have created a batch all the same.
func Uncertain(err error) bool {
	_, ok := errors.AsType[*uncertainError](err)
	return ok
}

// Fingerprint names the account that the client's batches belong to: a hash of provider,
// base URL and key, which discloses none of them.
func Fingerprint(client *llm.Client) string { return client.Account() }
