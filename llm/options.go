package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// Options are what a request asks for beyond its words, in the terms of OpenAI's chat
// completions. The zero value asks for nothing.
//
// Each wire format writes them in its own words. A member that a format has no place for
// is never dropped: [Client.Prepare] refuses the request, and names the member. For
// example, Anthropic has no seed.
type Options struct {
	// TopP is the share of probability that tokens are chosen from, such as 0.9.
	TopP *float64
	// Stop are the texts at which the model stops.
	Stop []string
	// Seed asks for the same answer to the same request, as far as the server can.
	Seed *int64
	// Effort is how much the model should reason: none, minimal, low, medium, high, xhigh
	// or max. If it is empty, that is left to the model.
	Effort string
	// LogProbs asks for the log-probabilities of the tokens, and TopLogProbs for those of
	// as many alternatives to each token.
	LogProbs    *bool
	TopLogProbs *int
	// Format is what the reply should look like. It is nil for a text.
	Format *ResponseFormat
	// Others is an object of further members, which servers of [ChatCompletions] get as
	// they are. No other format has a place for them.
	Others json.RawMessage
}

// ResponseFormat is the member response_format of chat completions.
type ResponseFormat struct {
	// Type is "text", "json_object" or "json_schema".
	Type string
	// JSON is the whole member, as it was given.
	JSON json.RawMessage
	// Schema is the schema of the type json_schema. It is nil where none is given, or
	// where it can't be read: Problem says why then. Only the formats of Anthropic and
	// Gemini need it, since the others get the member as it was given.
	Schema  *schema.Schema
	Problem error
}

// The types of a [ResponseFormat].
const (
	FormatText   = "text"
	FormatObject = "json_object"
	FormatSchema = "json_schema"
)

// ReadResponseFormat reads the member response_format. like is another one with a schema, or
// nil: an equal schema is taken from there rather than compiled again.
func ReadResponseFormat(raw json.RawMessage, like *ResponseFormat) (*ResponseFormat, error) {
	if !isObject(raw) {
		return nil, errors.New("must be an object with a type")
	}
	f := &ResponseFormat{JSON: bytes.Clone(raw)}
	kind, described := typed(f.JSON, FormatSchema)
	switch f.Type = kind; {
	case kind == FormatText, kind == FormatObject:
		return f, nil
	case kind != FormatSchema:
		return nil, fmt.Errorf("has the type %q: there are text, json_object and json_schema",
			excerpt.Of([]byte(kind)))
	case !isObject(described):
		return nil, errors.New("has no object json_schema")
	}
	source := jsonbytes.Find(described, "schema")
	switch {
	case !isReported(source):
	case like != nil && bytes.Equal(jsonbytes.Find(jsonbytes.Find(like.JSON, FormatSchema),
		"schema"), source):
		f.Schema = like.Schema
	default:
		f.Schema, f.Problem = schema.Parse(source, "response_format")
	}
	return f, nil
}

// NoPlaceError refuses a request with a member that the wire format has no place for.
type NoPlaceError struct {
	// Member is the member, by the name that it has in chat completions.
	Member string
	// Reason says more, where a value of the member is what there is no place for.
	Reason string
}

// Error names the member.
func (e *NoPlaceError) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("the request's member %q: %s", e.Member, e.Reason)
	}
	return fmt.Sprintf("the request's member %q has no place in requests to this provider: leave "+
		"it out", e.Member)
}

// seedMax is the largest seed of Gemini, whose seeds have 32 bits.
const seedMax = 1<<31 - 1

// responsesPlaces reports the first option that the responses API has no place for.
func (o *Options) responsesPlaces() error {
	switch {
	case o == nil:
		return nil
	case o.Stop != nil:
		return &NoPlaceError{Member: "stop"}
	case o.Seed != nil:
		return &NoPlaceError{Member: "seed"}
	}
	return o.noOthers()
}

// anthropicPlaces reports the first option that Anthropic has no place for.
func (o *Options) anthropicPlaces() error {
	switch {
	case o == nil:
		return nil
	case o.Seed != nil:
		return &NoPlaceError{Member: "seed"}
	case o.LogProbs != nil && *o.LogProbs:
		return &NoPlaceError{Member: "logprobs"}
	case o.TopLogProbs != nil:
		return &NoPlaceError{Member: "top_logprobs"}
	case o.Effort == "none", o.Effort == "minimal":
		return &NoPlaceError{
			Member: "reasoning_effort", Reason: o.Effort +
				" is not known to this provider: there are low, medium, high, xhigh and max",
		}
	case o.Format != nil && o.Format.Type == FormatObject:
		return &NoPlaceError{
			Member: "response_format", Reason: "this provider has nothing like json_object: give " +
				"a json_schema",
		}
	case o.Format != nil && o.Format.Problem != nil:
		return &NoPlaceError{Member: "response_format", Reason: o.Format.Problem.Error()}
	}
	return o.noOthers()
}

// geminiPlaces reports the first option that Gemini has no place for.
func (o *Options) geminiPlaces(model string) error {
	switch {
	case o == nil:
		return nil
	case o.Seed != nil && (*o.Seed > seedMax || *o.Seed < -seedMax-1):
		return &NoPlaceError{Member: "seed", Reason: "the seeds of this provider have 32 bits"}
	case o.Effort != "" && geminiThinking(model, o.Effort) == "":
		return &NoPlaceError{
			Member: "reasoning_effort", Reason: fmt.Sprintf("%s is not known to the provider's "+
				"model %s", o.Effort, model),
		}
	case o.Format != nil && o.Format.Problem != nil:
		return &NoPlaceError{Member: "response_format", Reason: o.Format.Problem.Error()}
	}
	return o.noOthers()
}

// noOthers reports the first member without a meaning of its own. A null asks for nothing.
func (o *Options) noOthers() error {
	for name, value := range jsonbytes.Members(o.Others) {
		if !isNull(value) {
			return &NoPlaceError{Member: string(name)}
		}
	}
	return nil
}

// schema returns the schema of the reply: the one of the request, or the one that its
// options ask for.
func (r *Request) schema() *schema.Schema {
	if r.Schema == nil && r.Options != nil && r.Options.Format != nil {
		return r.Options.Format.Schema
	}
	return r.Schema
}

// asksForJSON reports whether the options ask for an answer in JSON.
func (o *Options) asksForJSON() bool {
	return o != nil && o.Format != nil && o.Format.Type != FormatText
}

// effort returns the reasoning effort that is asked for, or "".
func (o *Options) effort() string {
	if o == nil {
		return ""
	}
	return o.Effort
}

// appendChat appends the options to a request of chat completions, each after a comma.
func (o *Options) appendChat(dst []byte) []byte {
	if o == nil {
		return dst
	}
	dst = appendNumber(dst, "top_p", o.TopP)
	dst = appendStop(dst, "stop", o.Stop)
	if o.Seed != nil {
		dst = strconv.AppendInt(append(dst, `,"seed":`...), *o.Seed, 10)
	}
	if o.Effort != "" {
		dst = jsonbytes.AppendString(append(dst, `,"reasoning_effort":`...), o.Effort)
	}
	if o.LogProbs != nil {
		dst = strconv.AppendBool(append(dst, `,"logprobs":`...), *o.LogProbs)
	}
	dst = appendCount(dst, "top_logprobs", o.TopLogProbs)
	if o.Format != nil {
		dst = append(append(dst, `,"response_format":`...), o.Format.JSON...)
	}
	for name, value := range jsonbytes.Members(o.Others) {
		dst = append(jsonbytes.AppendString(append(dst, ','), name), ':')
		dst = append(dst, value...)
	}
	return dst
}

// appendResponses appends the options to a request of responses, each after a comma. A
// schema is a part of the format there, where chat completions have it one level below.
func (o *Options) appendResponses(dst []byte) []byte {
	if o == nil {
		return dst
	}
	dst = appendNumber(dst, "top_p", o.TopP)
	if o.Effort != "" {
		dst = append(jsonbytes.AppendString(append(dst, `,"reasoning":{"effort":`...), o.Effort),
			'}')
	}
	if o.LogProbs != nil && *o.LogProbs {
		dst = append(dst, `,"include":["message.output_text.logprobs"]`...)
	}
	dst = appendCount(dst, "top_logprobs", o.TopLogProbs)
	switch {
	case o.Format == nil:
	case o.Format.Type == FormatSchema:
		dst = append(dst, `,"text":{"format":{"type":"json_schema"`...)
		for name, value := range jsonbytes.Members(jsonbytes.Find(o.Format.JSON, FormatSchema)) {
			dst = append(jsonbytes.AppendString(append(dst, ','), name), ':')
			dst = append(dst, value...)
		}
		dst = append(dst, "}}"...)
	default:
		dst = append(append(append(dst, `,"text":{"format":`...), o.Format.JSON...), '}')
	}
	return dst
}

// appendAnthropic appends the options that have a member of their own in a request to
// Anthropic, each after a comma.
func (o *Options) appendAnthropic(dst []byte) []byte {
	if o == nil {
		return dst
	}
	return appendStop(appendNumber(dst, "top_p", o.TopP), "stop_sequences", o.Stop)
}

// appendGemini appends the options to the generationConfig of Gemini, each after a comma.
func (o *Options) appendGemini(dst []byte, model string) []byte {
	if o == nil {
		return dst
	}
	dst = appendNumber(dst, "topP", o.TopP)
	dst = appendStop(dst, "stopSequences", o.Stop)
	if o.Seed != nil {
		dst = strconv.AppendInt(append(dst, `,"seed":`...), *o.Seed, 10)
	}
	if o.LogProbs != nil && *o.LogProbs {
		dst = append(dst, `,"responseLogprobs":true`...)
	}
	dst = appendCount(dst, "logprobs", o.TopLogProbs)
	if thinking := geminiThinking(model, o.Effort); thinking != "" {
		dst = append(append(dst, `,"thinkingConfig":`...), thinking...)
	}
	return dst
}

// geminiThinking returns the thinkingConfig for an effort, as Google publishes it for its
// own address of chat completions: a budget in tokens for the models of version 2, and a
// level from version 3 on, whose models can't leave thinking out. It is empty for an
// effort that the model does not know.
func geminiThinking(model, effort string) string {
	if strings.Contains(model, "gemini-2") {
		switch effort {
		case "none":
			return `{"thinkingBudget":0}`
		case "minimal", "low":
			return `{"thinkingBudget":1024}`
		case "medium":
			return `{"thinkingBudget":8192}`
		case "high":
			return `{"thinkingBudget":24576}`
		}
		return ""
	}
	switch effort {
	case "minimal", "low", "medium", "high":
		return `{"thinkingLevel":"` + strings.ToUpper(effort) + `"}`
	}
	return ""
}

// appendNumber appends a member after a comma, if it is set.
func appendNumber(dst []byte, name string, value *float64) []byte {
	if value == nil {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return jsonbytes.AppendFloat(dst, *value)
}

// appendCount appends a member after a comma, if it is set.
func appendCount(dst []byte, name string, value *int) []byte {
	if value == nil {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return strconv.AppendInt(dst, int64(*value), 10)
}

// appendStop appends the texts at which the model stops, if there are any.
func appendStop(dst []byte, name string, stop []string) []byte {
	if stop == nil {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":[`...)
	for i, text := range stop {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendString(dst, text)
	}
	return append(dst, ']')
}
