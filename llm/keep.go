package llm

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Keep is a set of the parts of a reply that are kept beside the answer.
type Keep uint8

// The parts of a reply, in the order in which results have them.
const (
	// KeepReasoning keeps the model's reasoning, wherever the reply has it.
	KeepReasoning Keep = 1 << iota
	// KeepLogprobs keeps the logarithms of the tokens' probabilities.
	KeepLogprobs
	// KeepToolCalls keeps calls of tools, and makes a reply with calls a success. Without
	// it such a reply is unfinished.
	KeepToolCalls
	// KeepCitations keeps the addresses of web pages that the answer is based on.
	KeepCitations
	// KeepFinishReason keeps the provider's word for why the model stopped.
	KeepFinishReason
	// KeepID keeps the provider's id of the reply.
	KeepID
	// KeepRaw keeps the provider's reply as a whole.
	KeepRaw
)

// keepNames are the names of the parts, in their order.
var keepNames = [...]string{
	"reasoning", "logprobs", "tool_calls", "citations", "finish_reason",
	"id", "raw",
}

// KeepNames returns the names of all parts, in the order in which results have them.
func KeepNames() []string { return slices.Clone(keepNames[:]) }

// ParseKeep returns the part of a name; ok is false if there is none.
func ParseKeep(name string) (part Keep, ok bool) {
	i := slices.Index(keepNames[:], name)
	if i < 0 {
		return 0, false
	}
	return 1 << i, true
}

// Has reports whether a part is in the set.
func (k Keep) Has(part Keep) bool { return k&part != 0 }

// Names returns the names of the parts in the set, in their order.
func (k Keep) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, name := range keepNames {
			if k.Has(1<<i) && !yield(name) {
				return
			}
		}
	}
}

// Kept returns what the reply to a request holds beside the answer.
func (r *Request) Kept() Keep {
	if len(r.Tools) > 0 {
		return r.Keep | KeepToolCalls
	}
	return r.Keep
}

// Kept is what a reply has beside its answer, in one form for all providers. A part that
// the reply lacks is empty.
type Kept struct {
	// Reasoning is the text of the model's reasoning, or of the provider's summary of it.
	Reasoning string
	// Logprobs is a list of {"token", "logprob", "top"}, where top lists the likeliest
	// tokens in the same form and is left out if the provider gave none.
	Logprobs json.RawMessage
	// ToolCalls are the calls that the model asks for.
	ToolCalls []ToolCall
	// Citations are the pages that the answer is based on, each once.
	Citations []Citation
	// Raw is the provider's reply without white space between its values.
	Raw json.RawMessage
}

// Citation is a page that an answer is based on.
type Citation struct {
	URL string `json:"url"`
	// Title is empty if the provider gave none.
	Title string `json:"title,omitempty"`
}

// calls returns the calls of tools in a reply, if they are kept.
func (r *Reply) calls() []ToolCall {
	if r.Kept == nil {
		return nil
	}
	return r.Kept.ToolCalls
}

// keepCalls keeps the calls of a reply.
func (r *Reply) keepCalls(calls []ToolCall) {
	if len(calls) > 0 {
		r.Kept = &Kept{ToolCalls: calls}
	}
}

// keepParts reads the parts that are kept, except calls, which decide how a reply ended
// and are read with the answer.
func keepParts(w Wire, body []byte, r *Reply, parts Keep, reasoning string) {
	if r.Kept == nil {
		r.Kept = new(Kept)
	}
	k := r.Kept
	if parts&(KeepReasoning|KeepLogprobs|KeepCitations) != 0 {
		w.keep(body, k, parts)
	}
	if parts.Has(KeepReasoning) {
		k.Reasoning = joinReasoning(k.Reasoning, reasoning)
	}
	if parts.Has(KeepRaw) && jsonbytes.ValidDepth(body, valueDepthMax) {
		k.Raw = compacted(body)
	}
}

// joinReasoning joins pieces of reasoning by empty lines, leaving out blank ones.
func joinReasoning(pieces ...string) string {
	return strings.Join(slices.DeleteFunc(pieces, blank), "\n\n")
}

// compacted returns a JSON value without white space, so that a result remains one line.
func compacted(value []byte) json.RawMessage {
	var b bytes.Buffer
	b.Grow(len(value))
	if json.Compact(&b, value) != nil {
		return nil
	}
	return b.Bytes()
}

// Values returns the parts of a set as JSON values by their names. A part that the reply
// lacks is null.
func (r *Reply) Values(parts Keep) map[string]json.RawMessage {
	values := make(map[string]json.RawMessage)
	for i, name := range keepNames {
		if part := Keep(1) << i; parts.Has(part) {
			if values[name] = r.value(part); values[name] == nil {
				values[name] = json.RawMessage("null")
			}
		}
	}
	return values
}

// value returns one part as a JSON value, or nil.
func (r *Reply) value(part Keep) json.RawMessage {
	text := func(s string) json.RawMessage {
		if s == "" {
			return nil
		}
		return jsonbytes.AppendString(nil, s)
	}
	switch {
	case part == KeepFinishReason:
		return text(r.FinishReason)
	case part == KeepID:
		return text(r.ID)
	case r.Kept == nil:
		return nil
	}
	switch k := r.Kept; part { //nolint:exhaustive // the others are above
	case KeepReasoning:
		return text(k.Reasoning)
	case KeepLogprobs:
		return k.Logprobs
	case KeepToolCalls:
		return appendCalls(k.ToolCalls)
	case KeepCitations:
		return appendCitations(k.Citations)
	default:
		return k.Raw
	}
}

func appendCalls(calls []ToolCall) (dst []byte) {
	if len(calls) == 0 {
		return nil
	}
	for i := range calls {
		dst = append(dst, separator(i))
		dst = jsonbytes.AppendStringOrNull(append(dst, `{"id":`...), calls[i].ID)
		dst = jsonbytes.AppendString(append(dst, `,"name":`...), calls[i].Name)
		dst = append(append(dst, `,"arguments":`...), calls[i].Arguments...)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

func appendCitations(citations []Citation) (dst []byte) {
	if len(citations) == 0 {
		return nil
	}
	for i, c := range citations {
		dst = append(dst, separator(i))
		dst = jsonbytes.AppendString(append(dst, `{"url":`...), c.URL)
		if c.Title != "" {
			dst = jsonbytes.AppendString(append(dst, `,"title":`...), c.Title)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// argumentsDepthMax bounds the nesting of arguments: they are in a call, in a list of
// them.
const argumentsDepthMax = valueDepthMax - 2

// argumentsOf returns the value of a call's arguments. OpenAI's formats have it as a text
// that the model has written, so that it may be anything.
func argumentsOf(raw []byte) json.RawMessage {
	switch {
	case !isReported(raw):
		return json.RawMessage("{}") // Gemini leaves out an empty object
	case raw[0] == '"':
		text := strings.TrimSpace(jsonbytes.Text(raw))
		if text == "" {
			return json.RawMessage("{}")
		}
		if !jsonbytes.ValidDepth([]byte(text), argumentsDepthMax) {
			return jsonbytes.AppendString(nil, jsonbytes.Text(raw))
		}
		return compacted([]byte(text))
	case !jsonbytes.ValidDepth(raw, argumentsDepthMax):
		return jsonbytes.AppendString(nil, string(raw))
	}
	return compacted(raw)
}

// cite adds a page, unless it is there.
func (k *Kept) cite(url, title []byte) {
	c := Citation{URL: textOf(url), Title: textOf(title)}
	i := slices.IndexFunc(k.Citations, func(have Citation) bool { return have.URL == c.URL })
	switch {
	case c.URL == "":
	case i < 0:
		k.Citations = append(k.Citations, c)
	case k.Citations[i].Title == "":
		k.Citations[i].Title = c.Title
	}
}

// citeAll adds the pages of a list of objects or texts, whose member urlName has the
// address. With a kind only objects of that type count.
func (k *Kept) citeAll(list []byte, kind, urlName string) {
	for one := range jsonbytes.Elements(list) {
		if one[0] == '"' {
			k.cite(one, nil)
			continue
		}
		var own, url, title []byte
		pick(one, at("type", &own), at(urlName, &url), at("title", &title))
		if kind == "" || textOf(own) == kind {
			k.cite(url, title)
		}
	}
}

// logprobsOf returns a list of tokens as OpenAI's formats have it in the stage's form, or
// nil if it is empty.
func logprobsOf(list []byte) json.RawMessage {
	return logprobList(list, "logprob",
		func(entry []byte, _ int) []byte { return jsonbytes.Find(entry, "top_logprobs") })
}

// logprobList writes tokens, whose member number has the logarithm. top returns the list
// of the likeliest tokens at a place.
func logprobList(
	list []byte, number string, top func(entry []byte, place int) []byte,
) json.RawMessage {
	var dst []byte
	place := 0
	for entry := range jsonbytes.Elements(list) {
		dst = append(dst, separator(place))
		dst = appendLogprob(dst, entry, number)
		n := 0
		for other := range jsonbytes.Elements(top(entry, place)) {
			if n == 0 {
				dst = append(dst, `,"top":`...)
			}
			dst = append(dst, separator(n))
			dst = append(appendLogprob(dst, other, number), '}')
			n++
		}
		if n > 0 {
			dst = append(dst, ']')
		}
		dst = append(dst, '}')
		place++
	}
	if place == 0 {
		return nil
	}
	return append(dst, ']')
}

// separator is what stands before the element at a place of a list.
func separator(place int) byte {
	if place == 0 {
		return '['
	}
	return ','
}

// appendLogprob appends a token without its closing brace.
func appendLogprob(dst, entry []byte, number string) []byte {
	var token, logprob []byte
	pick(entry, at("token", &token), at(number, &logprob))
	dst = jsonbytes.AppendString(append(dst, `{"token":`...), textOf(token))
	dst = append(dst, `,"logprob":`...)
	if len(logprob) == 0 || logprob[0] != '-' && (logprob[0] < '0' || logprob[0] > '9') {
		logprob = []byte("0") // Gemini leaves out zeros
		if number == "logprob" {
			logprob = []byte("null")
		}
	}
	return append(dst, logprob...)
}

// keep implements [Wire].
func (ChatCompletions) keep(body []byte, k *Kept, parts Keep) {
	var choices, citations, results, message, logprobs []byte
	pick(body, at("choices", &choices), at("citations", &citations), at("search_results", &results))
	first, _ := firstElement(choices)
	pick(first, at("message", &message), at("logprobs", &logprobs))
	if parts.Has(KeepLogprobs) {
		k.Logprobs = logprobsOf(jsonbytes.Find(logprobs, "content"))
	}
	if parts.Has(KeepCitations) {
		for one := range jsonbytes.Elements(jsonbytes.Find(message, "annotations")) {
			if kind, page := typed(one, "url_citation"); kind == "url_citation" {
				var url, title []byte
				pick(page, at("url", &url), at("title", &title))
				k.cite(url, title)
			}
		}
		k.citeAll(results, "", "url")   // Perplexity
		k.citeAll(citations, "", "url") // Perplexity, xAI
	}
	if parts.Has(KeepReasoning) {
		k.Reasoning = chatReasoning(message)
	}
}

// chatReasoning returns the reasoning beside the answer of chat completions. Servers that
// have several of these members repeat the same text in them.
func chatReasoning(message []byte) string {
	var content, own, newer, details, blocks []byte
	pick(message, at("content", &content),
		at("reasoning_content", &own), // DeepSeek, SGLang, vLLM until 0.11, xAI, LiteLLM
		at("reasoning", &newer),       // OpenRouter, vLLM, Groq, Together
		at("reasoning_details", &details), at("thinking_blocks", &blocks))
	for _, text := range [...]string{
		textOf(own), textOf(newer),
		// OpenRouter lists texts and summaries.
		reasoningParts(details, "reasoning.text", "text", "reasoning.summary", "summary"),
		// LiteLLM has blocks in a member of their own.
		reasoningParts(blocks, "thinking", "thinking"),
		// Mistral has them among the blocks of the content.
		reasoningParts(content, "thinking", "thinking"),
	} {
		if !blank(text) {
			return text
		}
	}
	return ""
}

// reasoningParts joins what the parts of a list hold. names are pairs of a type and the
// member with its text, which may be a list of texts.
func reasoningParts(list []byte, names ...string) string {
	var pieces []string
	for part := range jsonbytes.Elements(list) {
		for i := 0; i < len(names); i += 2 {
			if kind, member := typed(part, names[i+1]); kind == names[i] {
				text := textOf(member)
				if text == "" {
					text = joinParts(member, "text")
				}
				pieces = append(pieces, text)
			}
		}
	}
	return joinReasoning(pieces...)
}

// toolCalls returns the calls of a choice.
func (c *chatChoice) toolCalls() (calls []ToolCall) {
	for raw := range jsonbytes.Elements(c.toolList) {
		var id, function, custom []byte
		pick(raw, at("id", &id), at("function", &function), at("custom", &custom))
		call := ToolCall{ID: textOf(id)}
		if strings.HasPrefix(call.ID, serverToolID) {
			continue
		}
		if call.read(function, "arguments") || call.read(custom, "input") {
			calls = append(calls, call)
		}
	}
	var call ToolCall
	if len(calls) == 0 && call.read(c.function, "arguments") { // before tools there were functions
		calls = append(calls, call)
	}
	return calls
}

// read reads name and arguments of a call. It reports false for one without a name.
func (c *ToolCall) read(raw []byte, argumentsName string) bool {
	var name, arguments []byte
	pick(raw, at("name", &name), at(argumentsName, &arguments))
	if c.Name = textOf(name); c.Name == "" {
		return false
	}
	c.Arguments = argumentsOf(arguments)
	return true
}

// keep implements [Wire].
func (Responses) keep(body []byte, k *Kept, parts Keep) {
	var thoughts []string
	var tokens [][]byte
	for item := range jsonbytes.Elements(jsonbytes.Find(body, "output")) {
		var kind, content, summary []byte
		pick(item, at("type", &kind), at("content", &content), at("summary", &summary))
		switch textOf(kind) {
		case "reasoning":
			text := reasoningParts(content, "reasoning_text", "text") // open models
			if text == "" {
				text = reasoningParts(summary, "summary_text", "text")
			}
			thoughts = append(thoughts, text)
		case "message":
			for part := range jsonbytes.Elements(content) {
				var annotations, logprobs []byte
				pick(part, at("annotations", &annotations), at("logprobs", &logprobs))
				if parts.Has(KeepCitations) {
					k.citeAll(annotations, "url_citation", "url")
				}
				tokens = append(tokens, logprobs)
			}
		}
	}
	if parts.Has(KeepReasoning) {
		k.Reasoning = joinReasoning(thoughts...)
	}
	if !parts.Has(KeepLogprobs) {
		return
	}
	for _, list := range tokens {
		switch more := logprobsOf(list); {
		case more == nil:
		case k.Logprobs == nil:
			k.Logprobs = more
		default:
			k.Logprobs = append(append(k.Logprobs[:len(k.Logprobs)-1], ','), more[1:]...)
		}
	}
}

// keep implements [Wire].
func (Messages) keep(body []byte, k *Kept, parts Keep) {
	content := jsonbytes.Find(body, "content")
	if parts.Has(KeepReasoning) {
		k.Reasoning = reasoningParts(content, "thinking", "thinking")
	}
	if !parts.Has(KeepCitations) {
		return
	}
	for block := range jsonbytes.Elements(content) {
		citations := jsonbytes.Find(block, "citations")
		k.citeAll(citations, "web_search_result_location", "url")
		k.citeAll(citations, "search_result_location", "source")
	}
}

// messageCalls returns the calls of a message of Anthropic. Calls of the provider's own
// tools have another type.
func messageCalls(content []byte) (calls []ToolCall) {
	for block := range jsonbytes.Elements(content) {
		var kind, id []byte
		pick(block, at("type", &kind), at("id", &id))
		call := ToolCall{ID: textOf(id)}
		if textOf(kind) == "tool_use" && call.read(block, "input") {
			calls = append(calls, call)
		}
	}
	return calls
}

// keep implements [Wire].
func (GenerateContent) keep(body []byte, k *Kept, parts Keep) {
	candidate, _ := firstElement(jsonbytes.Find(body, "candidates"))
	var content, logprobs, grounding []byte
	pick(candidate, at("content", &content), at("logprobsResult", &logprobs),
		at("groundingMetadata", &grounding))
	if parts.Has(KeepReasoning) {
		var thoughts strings.Builder
		for part := range jsonbytes.Elements(jsonbytes.Find(content, "parts")) {
			var text, thought []byte
			pick(part, at("text", &text), at("thought", &thought))
			if isTrue(thought) {
				thoughts.WriteString(textOf(text))
			}
		}
		k.Reasoning = thoughts.String()
	}
	if parts.Has(KeepLogprobs) {
		k.Logprobs = geminiLogprobs(logprobs)
	}
	if !parts.Has(KeepCitations) {
		return
	}
	for chunk := range jsonbytes.Elements(jsonbytes.Find(grounding, "groundingChunks")) {
		for _, source := range jsonbytes.Members(chunk) { // web, maps, retrievedContext
			var uri, title []byte
			pick(source, at("uri", &uri), at("title", &title))
			k.cite(uri, title)
		}
	}
}

// geminiLogprobs reads two lists of one length: the tokens, and for each of them the
// likeliest ones.
func geminiLogprobs(result []byte) json.RawMessage {
	var chosen, top []byte
	pick(result, at("chosenCandidates", &chosen), at("topCandidates", &top))
	likeliest := slices.Collect(jsonbytes.Elements(top))
	return logprobList(chosen, "logProbability", func(_ []byte, place int) []byte {
		if place >= len(likeliest) {
			return nil
		}
		return jsonbytes.Find(likeliest[place], "candidates")
	})
}

// geminiCalls returns the calls among the parts of an answer.
func geminiCalls(parts []byte) (calls []ToolCall) {
	for part := range jsonbytes.Elements(parts) {
		function := jsonbytes.Find(part, "functionCall")
		call := ToolCall{ID: textOf(jsonbytes.Find(function, "id"))}
		if call.read(function, "args") {
			calls = append(calls, call)
		}
	}
	return calls
}
