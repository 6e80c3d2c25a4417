package llm

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// Converse is the Converse API of Amazon Bedrock, one format for the models of all makers
// there. What a maker's models have beyond it, such as a budget for thinking, goes into
// additionalModelRequestFields, which the extra body may set. The members of an object are
// in the order of their names, as in the requests of AWS's own clients.
type Converse struct{}

var _ Wire = Converse{}

// bedrockAddress returns the base URL of a region, such as eu-central-1.
func bedrockAddress(region string) string {
	if region == "" {
		return ""
	}
	return "https://bedrock-runtime." + region + ".amazonaws.com"
}

// Path implements [Wire]. The model is one segment of the path, and may be the ARN of an
// inference profile, which has colons and slashes.
func (Converse) Path(model string) string {
	dst := []byte("/model/")
	for _, c := range []byte(model) {
		if isAlphanumeric(rune(c)) || strings.IndexByte("-._~", c) >= 0 {
			dst = append(dst, c)
		} else { // AWS signs every other byte in this form
			dst = fmt.Appendf(dst, "%%%02X", c)
		}
	}
	return string(append(dst, "/converse"...))
}

// isAlphanumeric reports whether c is a letter or digit of ASCII.
func isAlphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// SetHeader implements [Wire]. The key is an API key of Bedrock.
func (Converse) SetHeader(h http.Header, key string) {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

// AppendRequest implements [Wire].
func (Converse) AppendRequest(dst []byte, r *Request) []byte {
	model := bedrockModelOf(r.Model)
	dst = append(dst, '{')
	effort := r.Options.effort()
	if effort != "" && model.effort != nil {
		dst = append(dst, `"additionalModelRequestFields":`...)
		dst = append(model.effort(dst, effort), ',')
		effort = ""
	}
	dst = appendInferenceConfig(dst, r)
	instructions, turns := leadingSystem(r.Messages)
	dst = appendConversation(append(dst, `"messages":[`...), r, turns)
	dst = append(dst, ']')
	dst = appendConverseOutput(dst, r, effort, model.dialect)
	if system := r.systemPrompt(model.dialect, instructions); system != "" {
		dst = jsonbytes.AppendString(append(dst, `,"system":[{"text":`...), system)
		dst = append(dst, "}]"...)
	}
	return append(appendConverseTools(dst, r), '}')
}

// appendInferenceConfig appends the settings that all models share, and a comma after
// them, if the request has any.
func appendInferenceConfig(dst []byte, r *Request) []byte {
	const open = `"inferenceConfig":`
	comma := len(dst) + len(open) // the first one becomes the brace
	dst = appendCount(append(dst, open...), "maxTokens", r.MaxTokens)
	if o := r.Options; o != nil {
		dst = appendStop(dst, "stopSequences", o.Stop)
	}
	dst = appendNumber(dst, "temperature", r.Temperature)
	if o := r.Options; o != nil {
		dst = appendNumber(dst, "topP", o.TopP)
	}
	if len(dst) == comma {
		return dst[:comma-len(open)]
	}
	dst[comma] = '{'
	return append(dst, "},"...)
}

// appendConverseOutput appends how much the model should reason, and the schema of the
// reply if the model can keep to it. The schema is a text there.
func appendConverseOutput(dst []byte, r *Request, effort string, d schema.Dialect) []byte {
	const open = `,"outputConfig":{`
	end := len(dst) + len(open)
	dst = append(dst, open...)
	if effort != "" {
		dst = jsonbytes.AppendString(append(dst, `"effort":`...), effort)
	}
	if s := r.schema(); s != nil && s.Within(d) {
		if len(dst) > end {
			dst = append(dst, ',')
		}
		dst = append(dst, `"textFormat":{"structure":{"jsonSchema":{`...)
		if r.Schema == nil { // the row's own request describes it
			described := jsonbytes.Find(r.Options.Format.JSON, FormatSchema)
			for _, name := range [...]string{"description", "name"} {
				if text := textOf(jsonbytes.Find(described, name)); text != "" {
					dst = append(append(append(dst, '"'), name...), `":`...)
					dst = append(jsonbytes.AppendString(dst, text), ',')
				}
			}
		}
		dst = jsonbytes.AppendString(append(dst, `"schema":`...), []byte(s.Source()))
		dst = append(dst, `}},"type":"json_schema"}`...)
	}
	if len(dst) == end {
		return dst[:end-len(open)]
	}
	return append(dst, '}')
}

// appendConverseTools appends the tools of the request. Converse has no word that forbids
// calls, so that the tools are left out where none may be called.
func appendConverseTools(dst []byte, r *Request) []byte {
	if len(r.Tools) == 0 || r.ToolChoice.Mode == ToolsNone {
		return dst
	}
	dst = append(dst, `,"toolConfig":{`...)
	switch r.ToolChoice.Mode {
	case ToolsAuto:
		dst = append(dst, `"toolChoice":{"auto":{}},`...)
	case ToolsRequired:
		dst = append(dst, `"toolChoice":{"any":{}},`...)
	case ToolsFunction:
		dst = append(dst, `"toolChoice":{"tool":{"name":`...)
		dst = append(jsonbytes.AppendString(dst, r.ToolChoice.Function), "}},"...)
	case ToolsNone, "":
	}
	dst = appendList(append(dst, `"tools":[`...), r.Tools, func(dst []byte, t *Tool) []byte {
		dst = append(dst, `{"toolSpec":{`...)
		if t.Description != "" {
			dst = append(jsonbytes.AppendString(append(dst, `"description":`...), t.Description),
				',')
		}
		dst = append(dst, `"inputSchema":{"json":`...)
		if len(t.Parameters) == 0 {
			dst = append(dst, `{"type":"object","properties":{}}`...)
		}
		dst = append(append(dst, t.Parameters...), `},"name":`...)
		return append(t.appendStrict(jsonbytes.AppendString(dst, t.Name), false), "}}"...)
	})
	return append(dst, '}')
}

func (Converse) check(r *Request) error {
	return cmp.Or(r.conversePlaces(), checkLeadingSystem(r.Messages),
		checkHistory(r.Messages, true, false), checkConversation(r.Messages))
}

// conversePlaces reports the first part of a request that Converse has no place for.
func (r *Request) conversePlaces() error {
	for i := range r.Messages {
		switch m := &r.Messages[i]; {
		case len(m.Calls) == 0 && m.Role != RoleTool:
		case len(r.Tools) == 0:
			return &NoPlaceError{
				Member: fmt.Sprintf("messages[%d]", i),
				Reason: "this provider takes calls of tools and their answers only together with " +
					"the tools, " +
					"and the request has none",
			}
		case r.ToolChoice.Mode == ToolsNone:
			return &NoPlaceError{
				Member: "tool_choice",
				Reason: "this provider can't forbid calls of the tools that the conversation has " +
					"called",
			}
		}
	}
	o := r.Options
	switch {
	case o == nil:
		return nil
	case o.Seed != nil:
		return &NoPlaceError{Member: "seed"}
	case o.LogProbs != nil && *o.LogProbs:
		return &NoPlaceError{Member: "logprobs"}
	case o.TopLogProbs != nil:
		return &NoPlaceError{Member: "top_logprobs"}
	case o.Format != nil && o.Format.Type == FormatObject:
		return &NoPlaceError{
			Member: "response_format",
			Reason: "this provider has nothing like json_object: give a json_schema",
		}
	case o.Format != nil && o.Format.Problem != nil:
		return &NoPlaceError{Member: "response_format", Reason: o.Format.Problem.Error()}
	}
	if levels := bedrockModelOf(r.Model).levels; o.Effort != "" &&
		!slices.Contains(levels, o.Effort) {
		return &NoPlaceError{
			Member: "reasoning_effort",
			Reason: fmt.Sprintf("%s is not known to the provider's model %s: there are %s",
				o.Effort, r.Model, strings.Join(levels, ", ")),
		}
	}
	return o.noOthers()
}

// checkConversation reports what of a conversation Bedrock refuses whatever its model.
func checkConversation(messages []Message) error {
	_, turns := leadingSystem(messages)
	if len(turns) > 0 && turns[0].Role == RoleAssistant {
		return errors.New("the conversation begins with a message of the assistant: " +
			"at this provider the first one is the user's")
	}
	for i := range turns {
		document, text := false, false
		for j := range turns[i].Parts {
			p := &turns[i].Parts[j]
			document = document || p.Media != nil && p.Media.Kind == KindFile
			text = text || p.Media == nil
		}
		if document && !text {
			return fmt.Errorf("message %d has a document and no text: "+
				"this provider wants a part of type text beside it", len(messages)-len(turns)+i+1)
		}
	}
	return nil
}

func (Converse) media() *mediaRules { return &bedrockMedia }

// converseEnds are the documented stop reasons, and the one that Claude has for a refusal.
var converseEnds = map[string]finish{
	"end_turn":                      finishStop,
	"stop_sequence":                 finishStop,
	"max_tokens":                    finishLength,
	"model_context_window_exceeded": finishLength,
	"guardrail_intervened":          finishFilter, // the text is the guardrail's own
	"content_filtered":              finishFilter,
	"refusal":                       finishRefusal,
	"tool_use":                      finishUnfinished, // unless its calls are kept
	"malformed_model_output":        finishUnfinished,
	"malformed_tool_use":            finishUnfinished,
}

// readReply implements [Wire]. A reply has no id of its own: it is that of the request,
// which is in a header.
func (Converse) readReply(body []byte, r *Reply, o *ending) {
	var output, message, content, reason, router []byte
	var input, completion, cached, written, minutes, hour []byte
	readUsage := func(usage []byte) {
		pick(usage, at("inputTokens", &input), at("outputTokens", &completion),
			at("cacheReadInputTokens", &cached), at("cacheWriteInputTokens", &written),
			each("cacheDetails",
				func(list []byte) { pickConverseLifetimes(list, &minutes, &hour) }))
	}
	pick(body, at("output", &output), at("stopReason", &reason), each("usage", readUsage),
		each("trace", func(trace []byte) { pick(trace, at("promptRouter", &router)) }))
	pick(output, at("message", &message))
	pick(message, at("content", &content))
	t := tally{completion: countOf(completion), cached: countOf(cached), written: countOf(written)}
	t.readLifetimes(minutes, hour)
	// Here inputTokens leaves out the tokens read from or written to a cache, and the total
	// is not the same with all models, so it is not read.
	t.prompt = countOf(input).plus(t.cached).plus(t.written)
	r.Model = textOf(jsonbytes.Find(router, "invokedModelId"))
	r.FinishReason, r.Usage = textOf(reason), t.usage()
	if !isReported(content) {
		o.malformed(body)
		return
	}
	r.ID = o.Header.Get(amznRequestID)
	r.Text = joinConverse(content)
	o.Finish = endOf(converseEnds, r.FinishReason)
	if o.Known.Keep.Has(KeepToolCalls) {
		if r.keepCalls(converseCalls(content)); len(r.calls()) > 0 && r.FinishReason == "tool_use" {
			o.Finish = finishStop
		}
	}
	if blank(r.Text) && len(r.calls()) == 0 {
		o.Form = formEmpty
	}
}

// pickConverseLifetimes finds how many of the tokens written to a cache stay for five
// minutes, and for an hour.
func pickConverseLifetimes(list []byte, minutes, hour *[]byte) {
	for one := range jsonbytes.Elements(list) {
		var tokens, lifetime []byte
		pick(one, at("inputTokens", &tokens), at("ttl", &lifetime))
		switch textOf(lifetime) {
		case "5m":
			*minutes = tokens
		case "1h":
			*hour = tokens
		}
	}
}

// joinConverse joins the texts of an answer: those of its blocks of text, and those with
// citations.
func joinConverse(content []byte) string {
	var texts []string
	for block := range jsonbytes.Elements(content) {
		var text, cited []byte
		pick(block, at("text", &text), at("citationsContent", &cited))
		texts = append(texts, looseString(text))
		for part := range jsonbytes.Elements(jsonbytes.Find(cited, "content")) {
			texts = append(texts, looseString(jsonbytes.Find(part, "text")))
		}
	}
	return strings.Join(texts, "") // of a single one no copy is made
}

// converseCalls returns the calls among the blocks of an answer, without those of tools
// that the provider runs itself.
func converseCalls(content []byte) (calls []ToolCall) {
	for block := range jsonbytes.Elements(content) {
		use := jsonbytes.Find(block, "toolUse")
		var kind, id []byte
		pick(use, at("type", &kind), at("toolUseId", &id))
		call := ToolCall{ID: textOf(id)}
		if textOf(kind) != "server_tool_use" && call.read(use, "input") {
			calls = append(calls, call)
		}
	}
	return calls
}

// keep implements [Wire].
func (Converse) keep(body []byte, k *Kept, parts Keep) {
	content := jsonbytes.Find(jsonbytes.Find(jsonbytes.Find(body, "output"), "message"), "content")
	var thoughts []string
	for block := range jsonbytes.Elements(content) {
		var reasoning, cited []byte
		pick(block, at("reasoningContent", &reasoning), at("citationsContent", &cited))
		// A block may have redactedContent instead, which is encrypted.
		thought := jsonbytes.Find(reasoning, "reasoningText")
		thoughts = append(thoughts, textOf(jsonbytes.Find(thought, "text")))
		if parts.Has(KeepCitations) {
			k.citeConverse(jsonbytes.Find(cited, "citations"))
		}
	}
	if parts.Has(KeepReasoning) {
		k.Reasoning = joinReasoning(thoughts...)
	}
}

// citeConverse adds the pages of the web and the search results among citations. Places in
// the documents of the request are none.
func (k *Kept) citeConverse(citations []byte) {
	for one := range jsonbytes.Elements(citations) {
		var location, source, title, web, result, url []byte
		pick(one, at("location", &location), at("source", &source), at("title", &title))
		pick(location, at("web", &web), at("searchResultLocation", &result))
		if pick(web, at("url", &url)); url == nil && isObject(result) {
			url = source
		}
		k.cite(url, title)
	}
}
