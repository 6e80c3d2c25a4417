package llm

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// GenerateContent is Gemini's models/{model}:generateContent.
type GenerateContent struct {
	// Vertex is where Vertex AI has the models. Its zero value is the Gemini API.
	Vertex VertexAI
}

var _ Wire = GenerateContent{}

// Path implements [Wire].
func (w GenerateContent) Path(model string) string {
	if !w.Vertex.isZero() {
		return w.Vertex.modelPath(model, "generateContent")
	}
	return (&url.URL{Path: "/" + geminiModel(model)}).EscapedPath() + ":generateContent"
}

// SetHeader implements [Wire]. The key goes into a header, never into the address, which
// ends up in logs.
func (GenerateContent) SetHeader(h http.Header, key string) {
	if key != "" {
		h.Set("X-Goog-Api-Key", key)
	}
}

// AppendRequest implements [Wire].
func (w GenerateContent) AppendRequest(dst []byte, r *Request) []byte {
	messages, role := &geminiTurns, ""
	if !w.Vertex.isZero() { // as Google's own client has it, which gives each content a role
		messages, role = &vertexTurns, `"role":"user",`
	}
	dst = append(dst, '{')
	instructions, turns := leadingSystem(r.Messages)
	if system := r.systemPrompt(schema.GeminiOutput, instructions); system != "" {
		dst = append(append(append(dst, `"systemInstruction":{`...), role...),
			`"parts":[{"text":`...)
		dst = jsonbytes.AppendString(dst, system)
		dst = append(dst, `}]},`...)
	}
	dst = append(dst, `"contents":[`...)
	dst = messages.appendTurns(dst, r, turns)
	dst = append(dst, ']')
	return append(appendGeminiTools(appendGenerationConfig(dst, r), r), '}')
}

// appendGenerationConfig appends the settings of a request, if it has any.
func appendGenerationConfig(dst []byte, r *Request) []byte {
	const open = `,"generationConfig":`
	comma := len(dst) + len(open) // the first one becomes the brace
	dst = appendSettings(append(dst, open...), r, "maxOutputTokens")
	dst = r.Options.appendGemini(dst, r.Model)
	s := r.schema()
	if s != nil || r.Options.asksForJSON() {
		dst = append(dst, `,"responseMimeType":"application/json"`...)
	}
	if s != nil && s.Within(schema.GeminiOutput) {
		dst = append(append(dst, `,"responseJsonSchema":`...), s.Source()...)
	}
	if len(dst) == comma {
		return dst[:comma-len(open)]
	}
	dst[comma] = '{'
	return append(dst, '}')
}

func (GenerateContent) check(r *Request) error {
	return cmp.Or(r.Options.geminiPlaces(r.Model), checkLeadingSystem(r.Messages),
		checkHistory(r.Messages, true, true))
}

func (w GenerateContent) media() *mediaRules {
	if w.Vertex.isZero() {
		return &geminiMedia
	}
	return &vertexMedia
}

// readReply implements [Wire].
func (GenerateContent) readReply(body []byte, r *Reply, o *ending) {
	var id, model, candidates, feedback, fault, prompt, toolPrompt, completion, thoughts, cached,
		total []byte
	counted := false // there is a usage, even an empty one
	readUsage := func(usage []byte) {
		counted = isReported(usage)
		pick(usage, at("promptTokenCount", &prompt), at("toolUsePromptTokenCount", &toolPrompt),
			at("candidatesTokenCount", &completion), at("thoughtsTokenCount", &thoughts),
			at("cachedContentTokenCount", &cached), at("totalTokenCount", &total))
	}
	pick(body, at("responseId", &id), at("modelVersion", &model), at("candidates", &candidates),
		at("promptFeedback", &feedback), each("usageMetadata", readUsage), at("error", &fault))
	t := tally{
		prompt: countOf(prompt).plus(countOf(toolPrompt)), cached: countOf(cached),
		total: countOf(total), omitsZeros: true,
		// Thoughts are billed as output but not counted among the candidates.
		completion: countOf(completion).plus(countOf(thoughts)), reasoning: countOf(thoughts),
	}
	r.ID, r.Model, r.Usage = textOf(id), textOf(model), t.usage()
	candidate, answered := firstElement(candidates)
	blocked := textOf(jsonbytes.Find(feedback, "blockReason"))
	switch {
	case isError(fault):
		o.malformed(body)
		return
	case answered:
	case blocked != "":
		r.FinishReason = blocked
		o.Finish = finishFilter
		return
	case counted || isReported(feedback) || r.Model != "":
		o.Form = formNoChoices // this format leaves empty lists out
		return
	default:
		o.malformed(body)
		return
	}
	var reason, content []byte
	pick(candidate, at("finishReason", &reason), at("content", &content))
	r.FinishReason = textOf(reason)
	var calls bool
	parts := jsonbytes.Find(content, "parts")
	r.Text, calls = joinSpoken(parts)
	o.Finish = endOf(geminiEnds, r.FinishReason)
	if calls && o.Known.Keep.Has(KeepToolCalls) {
		r.keepCalls(geminiCalls(parts))
	} else if calls && o.Finish == finishStop {
		// The format has no finish reason for it: the model waits for what a function
		// returns.
		r.FinishReason, o.Finish = "functionCall", finishUnfinished
	}
	if blank(r.Text) && len(r.calls()) == 0 {
		o.Form = formEmpty
	}
}

// geminiEnds are the documented finish reasons. A candidate without one has not been
// finished.
var geminiEnds = map[string]finish{
	"STOP":       finishStop,
	"MAX_TOKENS": finishLength,

	"SAFETY":                   finishFilter,
	"RECITATION":               finishFilter,
	"LANGUAGE":                 finishFilter,
	"BLOCKLIST":                finishFilter,
	"PROHIBITED_CONTENT":       finishFilter,
	"SPII":                     finishFilter,
	"MODEL_ARMOR":              finishFilter,
	"IMAGE_SAFETY":             finishFilter,
	"IMAGE_PROHIBITED_CONTENT": finishFilter,
	"IMAGE_RECITATION":         finishFilter,

	"FINISH_REASON_UNSPECIFIED": finishUnfinished,
	"OTHER":                     finishUnfinished,
	"MALFORMED_RESPONSE":        finishUnfinished,
	"MALFORMED_FUNCTION_CALL":   finishUnfinished,
	"UNEXPECTED_TOOL_CALL":      finishUnfinished,
	"TOO_MANY_TOOL_CALLS":       finishUnfinished,
	// At Vertex AI the answer goes on in another request.
	"CONTINUATION":              finishUnfinished,
	"NO_IMAGE":                  finishUnfinished,
	"IMAGE_OTHER":               finishUnfinished,
	"MISSING_THOUGHT_SIGNATURE": finishDeadEnd, // the request lacks it
}

// joinSpoken joins the texts of all parts in a list that are not thoughts, and reports
// whether a part calls a function.
func joinSpoken(raw []byte) (text string, calls bool) {
	var texts []string
	for part := range jsonbytes.Elements(raw) {
		var text, thought, call []byte
		pick(part, at("text", &text), at("thought", &thought), at("functionCall", &call))
		calls = calls || isObject(call)
		if !isTrue(thought) {
			texts = append(texts, looseString(text))
		}
	}
	return strings.Join(texts, ""), calls
}
