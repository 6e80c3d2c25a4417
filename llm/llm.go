// Package llm turns a row into one call of a language model and its reply into a verdict.
//
// It has two independent parts: wire formats (pure translations between a [Request] and
// the JSON of one family of servers), and one classifier, which decides from status,
// typed fields and headers what a failed attempt means. Only [Client] does input and
// output: one HTTP attempt per call, bounded in time and bytes, without retries. Retrying
// is up to the caller, guided by [Error.Class]: package pool for rows, [Batch] for many
// prompts at once. The prompt, and where the answer goes, are up to packages that use this
// one: llm/template renders prompts, llm/row reads rows and writes results.
//
//	cfg := llm.ProviderConfig{APIKey: redact.NewSecret(key), Model: "gpt-6-luna"}
//	client, err := llm.NewProvider("openai", cfg)
//	prepared, err := client.Prepare(&llm.Request{Prompt: "Say hello."})
//	exchange, err := client.Do(ctx, prepared)
//	if e, ok := errors.AsType[*llm.Error](err); ok && e.Class == llm.Capacity {
//		// slow down, try again
//	}
//	fmt.Println(exchange.Reply.Text)
//
// Other programs may rely on [NewProvider] with [ProviderConfig], Prepare and Do of a
// [Client], [Request] with its [Tool]s, [Reply] with [Kept], [Usage], [Error] with its
// classes and reasons, [ParseReply] with the wire formats, [ValidateReply], and [Batch]
// with its types. The rest serves this program and may change with any release.
package llm

import (
	"encoding/json"

	"github.com/llm-stage/stage/llm/schema"
)

// Request is one question in terms that all wire formats share. Its zero value sends an
// empty prompt to the client's own model. A Request is only read, never kept.
type Request struct {
	// Model overrides the client's model. If empty, the client's is used.
	Model string
	// System is the system prompt. If empty, none is sent.
	System string
	// Context is a user message sent before the prompt. If empty, none is sent.
	Context string
	// Prompt is the user message.
	Prompt string
	// Messages is the conversation to go on with, sent in place of Prompt. If empty, the
	// request is the prompt.
	Messages []Message
	// Inputs are the texts that [TaskEmbed] makes vectors of in one call. If there are none,
	// it makes one of Prompt. They mean nothing to other tasks.
	Inputs []string
	// Temperature is sent only when set.
	Temperature *float64
	// MaxTokens bounds the reply, in tokens. It is sent only when set, except
	// where the wire format demands one (Anthropic: 4096 then).
	MaxTokens *int
	// Tools are the functions that the model may call. If there are none, no choice is
	// sent either.
	Tools []Tool
	// ToolChoice says which of the tools the model calls.
	ToolChoice ToolChoice
	// Options are what else the request asks for. It is nil for nothing else.
	Options *Options
	// Keep is what the [Reply] holds beside the answer. With Tools it has their calls in
	// any case. It is not sent.
	Keep Keep
	// ExtraBody is a JSON object whose members are merged into the request last, each
	// replacing a member of the same name; two objects of the same name are merged member
	// by member. It must pass [ValidateExtraBody]. If empty, nothing is added.
	ExtraBody json.RawMessage
	// Schema is the schema that the reply must satisfy. It is sent where the provider
	// supports it; [ValidateReply] checks the reply in any case. It is nil for a reply
	// without a schema.
	Schema *schema.Schema
	// Rejected is the reply to an earlier attempt, and Complaint the reason why it was
	// rejected. With a Complaint both are sent after the prompt, so that the model can
	// correct its answer. If it is empty, neither is sent.
	Rejected, Complaint string

	// placed notes where [Wire.AppendRequest] puts media. It is nil if nobody asks.
	placed *placements
}

// Reply is what the model answered.
type Reply struct {
	// Text is the answer. In a reply without an error it is only empty if it calls tools, or
	// if it has several vectors.
	Text string
	// Vectors are the vectors of [Request.Inputs], as JSON, in the order of the texts. A
	// single one is Text, too. It is nil for other tasks than [TaskEmbed].
	Vectors []string `json:",omitempty"`
	// Model is the model that answered, as the server reports it. It is empty if not reported.
	Model string
	// ID is the provider's own id of the reply. It is empty if not reported.
	ID string
	// FinishReason is the provider's own word for why the model stopped.
	FinishReason string
	// Kept is what [Request.Keep] asks for beside the answer, except FinishReason and ID.
	// It is nil if that is nothing.
	Kept *Kept
	// Usage is nil if the server reported none, or so little that neither a cost nor the
	// tokens of both prompt and completion are known.
	Usage *Usage
}

// Usage counts the tokens of one call, as the server reported them. A nil *Usage
// means that they are not known, which is not the same as no tokens.
type Usage struct {
	// PromptTokens counts all tokens read, those read from or written to a cache
	// included. This and the next two are 0 where a server reported a Cost and no such
	// number.
	PromptTokens int64 `json:"prompt_tokens"`
	// CompletionTokens counts all tokens written, hidden reasoning included. Tokens that
	// the server counts in its total alone are among them, for they are billed as such.
	CompletionTokens int64 `json:"completion_tokens"`
	// TotalTokens is the server's total, or the sum of the two where it reported none.
	TotalTokens int64 `json:"total_tokens"`
	// CachedTokens is the part of PromptTokens read from a cache. It is nil if the server
	// did not report it.
	CachedTokens *int64 `json:"cached_tokens,omitempty"`
	// CacheWriteTokens is the part of PromptTokens written to a cache, for any time. It is
	// nil if the server did not report it.
	CacheWriteTokens *int64 `json:"cache_write_tokens,omitempty"`
	// CacheWrite1hTokens is the part of CacheWriteTokens that stays for an hour, which
	// has its own price. It is nil if the server did not report it.
	CacheWrite1hTokens *int64 `json:"cache_write_1h_tokens,omitempty"`
	// ReasoningTokens is the part of CompletionTokens that was hidden reasoning. It is nil
	// if the server did not report it.
	ReasoningTokens *int64 `json:"reasoning_tokens,omitempty"`
	// Cost is the price of the call in USD, including the price of an own key at the
	// upstream provider. It is nil if the server did not report it, or reported more than
	// 1e9, which cannot be true.
	Cost *float64 `json:"cost,omitempty"`
}
