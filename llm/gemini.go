package llm

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// GenerateContent is Gemini's models/{model}:generateContent.
type GenerateContent struct{}

var _ Wire = GenerateContent{}

// Path implements [Wire].
func (GenerateContent) Path(model string) string {
	if !strings.Contains(model, "/") { // else it says its kind: models/, tunedModels/
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
	if r.System != "" {
		dst = append(dst, `"systemInstruction":{"parts":[{"text":`...)
		dst = appendString(dst, r.System)
		dst = append(dst, `}]},`...)
	}
	dst = append(dst, `"contents":[`...)
	if r.Context != "" {
		dst = appendContent(dst, "user", r.Context)
		dst = append(dst, ',')
	}
	dst = appendContent(dst, "user", r.Prompt)
	if r.Complaint != "" {
		if r.Rejected != "" {
			dst = append(dst, ',')
			dst = appendContent(dst, "model", r.Rejected)
		}
		dst = append(dst, ',')
		dst = appendContent(dst, "user", r.Complaint)
	}
	dst = append(dst, ']')
	if r.Temperature != nil || r.MaxTokens != nil || r.Schema != nil {
		dst = append(dst, `,"generationConfig":{`...)
		if r.Temperature != nil {
			dst = append(dst, `"temperature":`...)
			dst = appendFloat(dst, *r.Temperature)
			dst = append(dst, ',')
		}
		if r.MaxTokens != nil {
			dst = append(dst, `"maxOutputTokens":`...)
			dst = appendInt(dst, *r.MaxTokens)
			dst = append(dst, ',')
		}
		if r.Schema != nil {
			dst = append(dst, `"responseMimeType":"application/json","responseJsonSchema":`...)
			dst = append(dst, r.Schema.source...)
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
	dst = appendString(dst, text)
	return append(dst, "}]}"...)
}

type geminiReply struct {
	ResponseID   string `json:"responseId"`
	ModelVersion string `json:"modelVersion"`
	Candidates   []struct {
		FinishReason string `json:"finishReason"`
		Content      struct {
			Parts []struct {
				Text    looseText `json:"text"`
				Thought bool      `json:"thought"`
			} `json:"parts"`
		} `json:"content"`
	} `json:"candidates"`
	PromptFeedback *struct {
		BlockReason string `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage *struct {
		Prompt     count `json:"promptTokenCount"`
		ToolPrompt count `json:"toolUsePromptTokenCount"`
		Candidates count `json:"candidatesTokenCount"`
		Thoughts   count `json:"thoughtsTokenCount"`
		Cached     count `json:"cachedContentTokenCount"`
		Total      count `json:"totalTokenCount"`
	} `json:"usageMetadata"`
	Error json.RawMessage `json:"error"`
}

// ReadReply implements [Wire].
func (GenerateContent) ReadReply(body []byte, r *Reply, o *Outcome) {
	var v geminiReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model = v.ResponseID, v.ModelVersion
	if u := v.Usage; u != nil {
		// Thoughts are billed as output but not counted among the candidates.
		prompt, completion := u.Prompt, u.Candidates
		prompt.n += u.ToolPrompt.n
		completion.n += u.Thoughts.n
		if r.Usage = usageOf(prompt, completion, u.Total); r.Usage != nil {
			r.Usage.CachedTokens = u.Cached.pointer()
			r.Usage.ReasoningTokens = u.Thoughts.pointer()
		}
	}
	switch {
	case isObject(v.Error):
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case len(v.Candidates) > 0:
	case v.PromptFeedback != nil && v.PromptFeedback.BlockReason != "":
		r.FinishReason = v.PromptFeedback.BlockReason
		o.Finish = FinishFilter
		return
	case v.Usage != nil || v.PromptFeedback != nil || v.ModelVersion != "":
		o.Form = FormNoChoices // this format leaves empty lists out
		return
	default:
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	}
	candidate := &v.Candidates[0]
	r.FinishReason = candidate.FinishReason
	var text strings.Builder
	for _, part := range candidate.Content.Parts {
		if !part.Thought {
			text.WriteString(string(part.Text))
		}
	}
	r.Text = text.String()
	switch candidate.FinishReason {
	case "MAX_TOKENS":
		o.Finish = FinishLength
	case "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR":
		o.Finish = FinishFilter
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}
