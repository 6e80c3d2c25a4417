package llm

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// GenerateContent is Gemini's models/{model}:generateContent.
type GenerateContent struct{}

var _ Wire = GenerateContent{}

// Path implements [Wire].
func (GenerateContent) Path(model string) string {
	if !strings.Contains(model, "/") { // else it includes its kind: models/, tunedModels/
		model = "models/" + model
	}
	return (&url.URL{Path: "/" + model}).EscapedPath() + ":generateContent"
}

// SetHeader implements [Wire]. The key goes into a header, never into the
// address, which ends up in logs.
func (GenerateContent) SetHeader(h http.Header, key string) {
	if key != "" {
		h.Set("X-Goog-Api-Key", key)
	}
}

// AppendRequest implements [Wire].
func (GenerateContent) AppendRequest(dst []byte, r *Request) []byte {
	dst = append(dst, '{')
	if system := r.systemPrompt(schema.GeminiOutput); system != "" {
		dst = append(dst, `"systemInstruction":{"parts":[{"text":`...)
		dst = jsonbytes.AppendString(dst, system)
		dst = append(dst, `}]},`...)
	}
	dst = append(dst, `"contents":[`...)
	dst = appendTurns(dst, r, "model", appendContent)
	dst = append(dst, ']')
	if r.Temperature != nil || r.MaxTokens != nil || r.Schema != nil {
		dst = append(dst, `,"generationConfig":{`...)
		if r.Temperature != nil {
			dst = append(dst, `"temperature":`...)
			dst = jsonbytes.AppendFloat(dst, *r.Temperature)
			dst = append(dst, ',')
		}
		if r.MaxTokens != nil {
			dst = append(dst, `"maxOutputTokens":`...)
			dst = strconv.AppendInt(dst, int64(*r.MaxTokens), 10)
			dst = append(dst, ',')
		}
		if r.Schema != nil {
			dst = append(dst, `"responseMimeType":"application/json",`...)
		}
		if r.Schema != nil && r.Schema.Within(schema.GeminiOutput) {
			dst = append(dst, `"responseJsonSchema":`...)
			dst = append(dst, r.Schema.Source()...)
			dst = append(dst, ',')
		}
		dst[len(dst)-1] = '}' // the last comma
	}
	return append(dst, '}')
}

func appendContent(dst []byte, role, text string) []byte {
	dst = append(dst, `{"role":"`...)
	dst = append(dst, role...)
	dst = append(dst, `","parts":[{"text":`...)
	dst = jsonbytes.AppendString(dst, text)
	return append(dst, "}]}"...)
}

// geminiReply is what matters of a reply, as far as it was reported.
type geminiReply struct {
	candidates, feedback, fault []byte
	counted                     bool // there is a usage, even an empty one
	usage                       geminiUsage
}

type geminiUsage struct {
	tally
	toolPrompt count
}

func (v *geminiReply) read(body []byte, r *Reply) {
	for key, value := range jsonbytes.Members(body) {
		switch string(key) {
		case "responseId":
			readString(&r.ID, value)
		case "modelVersion":
			readString(&r.Model, value)
		case "candidates":
			v.candidates = value
		case "promptFeedback":
			v.feedback = value
		case "usageMetadata":
			v.counted = isReported(value)
			v.usage.read(value)
		case "error":
			v.fault = value
		}
	}
}

func (u *geminiUsage) read(raw []byte) {
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "promptTokenCount":
			u.prompt = countOf(value)
		case "toolUsePromptTokenCount":
			u.toolPrompt = countOf(value)
		case "candidatesTokenCount":
			u.completion = countOf(value)
		case "thoughtsTokenCount":
			u.reasoning = countOf(value)
		case "cachedContentTokenCount":
			u.cached = countOf(value)
		case "totalTokenCount":
			u.total = countOf(value)
		}
	}
}

func (u *geminiUsage) usage() *Usage {
	// Thoughts are billed as output but not counted among the candidates.
	u.prompt, u.completion = u.prompt.plus(u.toolPrompt), u.completion.plus(u.reasoning)
	u.omitsZeros = true
	return u.tally.usage()
}

// ReadReply implements [Wire].
func (GenerateContent) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v geminiReply
	v.read(body, r)
	r.Usage = v.usage.usage()
	candidate, answered := firstElement(v.candidates)
	var blocked string
	readString(&blocked, jsonbytes.Find(v.feedback, "blockReason"))
	switch {
	case isError(v.fault):
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case answered:
	case blocked != "":
		r.FinishReason = blocked
		o.Finish = FinishFilter
		return
	case v.counted || isReported(v.feedback) || r.Model != "":
		o.Form = FormNoChoices // this format leaves empty lists out
		return
	default:
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	}
	var parts []byte
	for key, value := range jsonbytes.Members(candidate) {
		switch string(key) {
		case "finishReason":
			readString(&r.FinishReason, value)
		case "content":
			parts = jsonbytes.Find(value, "parts")
		}
	}
	var calls bool
	r.Text, calls = joinSpoken(parts)
	o.Finish = endOf(geminiEnds, r.FinishReason)
	if calls && o.Finish == FinishStop {
		// The format has no finish reason for it: the model waits for what a function returns.
		r.FinishReason, o.Finish = "functionCall", FinishUnfinished
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}

// geminiEnds are the documented finish reasons. A candidate without one has not
// been finished.
var geminiEnds = map[string]Finish{
	"STOP":       FinishStop,
	"MAX_TOKENS": FinishLength,

	"SAFETY":                   FinishFilter,
	"RECITATION":               FinishFilter,
	"LANGUAGE":                 FinishFilter,
	"BLOCKLIST":                FinishFilter,
	"PROHIBITED_CONTENT":       FinishFilter,
	"SPII":                     FinishFilter,
	"MODEL_ARMOR":              FinishFilter,
	"IMAGE_SAFETY":             FinishFilter,
	"IMAGE_PROHIBITED_CONTENT": FinishFilter,
	"IMAGE_RECITATION":         FinishFilter,

	"FINISH_REASON_UNSPECIFIED": FinishUnfinished,
	"OTHER":                     FinishUnfinished,
	"MALFORMED_RESPONSE":        FinishUnfinished,
	"MALFORMED_FUNCTION_CALL":   FinishUnfinished,
	"UNEXPECTED_TOOL_CALL":      FinishUnfinished,
	"TOO_MANY_TOOL_CALLS":       FinishUnfinished,
	"NO_IMAGE":                  FinishUnfinished,
	"IMAGE_OTHER":               FinishUnfinished,
	"MISSING_THOUGHT_SIGNATURE": FinishDeadEnd, // the request lacks it
}

// joinSpoken joins the texts of all parts in a list that are no thoughts, and
// reports whether a part calls a function.
func joinSpoken(raw []byte) (text string, calls bool) {
	var texts []string
	for part := range jsonbytes.Elements(raw) {
		var text []byte
		thought := false
		for key, value := range jsonbytes.Members(part) {
			switch string(key) {
			case "text":
				text = value
			case "thought":
				thought = value[0] == 't'
			case "functionCall":
				calls = calls || isObject(value)
			}
		}
		if !thought {
			texts = append(texts, looseString(text))
		}
	}
	return strings.Join(texts, ""), calls
}
