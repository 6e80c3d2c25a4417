package llm

import (
	"encoding/json"
	"strings"
)

// The reference reads replies as the wire formats did at first: encoding/json fills structs. It is slow, and its types say
// what the formats are.

type referenceChatReply struct {
	ID      string                 `json:"id"`
	Model   string                 `json:"model"`
	Choices *[]referenceChatChoice `json:"choices"`
	Usage   *referenceChatUsage    `json:"usage"`
	Error   json.RawMessage        `json:"error"`
}

type referenceChatChoice struct {
	FinishReason string                `json:"finish_reason"`
	Message      *referenceChatMessage `json:"message"`
	Error        json.RawMessage       `json:"error"` // OpenRouter
}

type referenceChatMessage struct {
	Content referenceParts `json:"content"`
	Refusal looseText      `json:"refusal"`
}

type referenceChatUsage struct {
	Prompt        count `json:"prompt_tokens"`
	Completion    count `json:"completion_tokens"`
	Total         count `json:"total_tokens"`
	Cost          any   `json:"cost"` // OpenRouter, in USD; its type is asked below, so that a wrong one is no 0
	PromptDetails struct {
		Cached count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u *referenceChatUsage) usage() *Usage {
	if u == nil {
		return nil
	}
	usage := usageOf(u.Prompt, u.Completion, u.Total)
	if usage == nil {
		return nil
	}
	usage.CachedTokens = u.PromptDetails.Cached.pointer()
	usage.ReasoningTokens = u.CompletionDetails.Reasoning.pointer()
	if cost, ok := u.Cost.(float64); ok && cost >= 0 {
		usage.Cost = &cost
	}
	return usage
}

func referenceChat(body []byte, r *Reply, o *Outcome) {
	var v referenceChatReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model, r.Usage = v.ID, v.Model, v.Usage.usage()
	switch {
	case isObject(v.Error) || v.Choices == nil:
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case len(*v.Choices) == 0:
		o.Form = FormNoChoices
		return
	}
	choice := &(*v.Choices)[0]
	r.FinishReason = choice.FinishReason
	switch {
	case isObject(choice.Error):
		o.Fault = faultOf(choice.Error)
	case choice.FinishReason == "error", // OpenRouter, vLLM
		choice.FinishReason == "abort",                        // vLLM, SGLang
		choice.FinishReason == "insufficient_system_resource": // DeepSeek
		o.Fault = &Fault{Code: choice.FinishReason}
	case choice.Message == nil:
		o.Form = FormMalformed
		return
	}
	if choice.Message != nil {
		r.Text = string(choice.Message.Content)
		if choice.Message.Refusal != "" {
			o.Finish = FinishRefusal
		}
	}
	switch choice.FinishReason {
	case "length", "model_length": // Mistral: the end of the context window
		o.Finish = FinishLength
	case "content_filter":
		o.Finish = FinishFilter
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}

type referenceMessagesReply struct {
	ID         string `json:"id"`
	Type       string `json:"type"`
	Model      string `json:"model"`
	StopReason string `json:"stop_reason"`
	Content    *[]struct {
		Type string    `json:"type"`
		Text looseText `json:"text"`
	} `json:"content"`
	Usage *struct {
		Input      count `json:"input_tokens"`
		Output     count `json:"output_tokens"`
		CacheWrite count `json:"cache_creation_input_tokens"`
		CacheRead  count `json:"cache_read_input_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func referenceMessages(body []byte, r *Reply, o *Outcome) {
	var v referenceMessagesReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model, r.FinishReason = v.ID, v.Model, v.StopReason
	if u := v.Usage; u != nil {
		// Here input_tokens leaves out what was read from or written to a cache.
		input := u.Input
		input.n += u.CacheRead.n + u.CacheWrite.n
		if r.Usage = usageOf(input, u.Output, count{}); r.Usage != nil {
			r.Usage.CachedTokens = u.CacheRead.pointer()
		}
	}
	if isObject(v.Error) || v.Content == nil {
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	}
	var text strings.Builder
	for _, part := range *v.Content {
		if part.Type == "text" {
			text.WriteString(string(part.Text))
		}
	}
	r.Text = text.String()
	switch v.StopReason {
	case "max_tokens", "model_context_window_exceeded":
		o.Finish = FinishLength
	case "refusal":
		o.Finish = FinishRefusal
	}
	if blank(r.Text) {
		o.Form = FormEmpty
	}
}

type referenceGeminiReply struct {
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

func referenceGemini(body []byte, r *Reply, o *Outcome) {
	var v referenceGeminiReply
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

type referenceResponsesReply struct {
	ID         string          `json:"id"`
	Model      string          `json:"model"`
	Status     string          `json:"status"`
	Error      json.RawMessage `json:"error"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Output *[]struct {
		Type    string `json:"type"`
		Content []struct {
			Type    string    `json:"type"`
			Text    looseText `json:"text"`
			Refusal looseText `json:"refusal"`
		} `json:"content"`
	} `json:"output"`
	Usage *struct {
		Input        count `json:"input_tokens"`
		Output       count `json:"output_tokens"`
		Total        count `json:"total_tokens"`
		InputDetails struct {
			Cached count `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		OutputDetails struct {
			Reasoning count `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	} `json:"usage"`
}

func referenceResponses(body []byte, r *Reply, o *Outcome) {
	var v referenceResponsesReply
	if !decode(body, &v) {
		o.Form = FormNotJSON
		return
	}
	r.ID, r.Model, r.FinishReason = v.ID, v.Model, v.Status
	if u := v.Usage; u != nil {
		if r.Usage = usageOf(u.Input, u.Output, u.Total); r.Usage != nil {
			r.Usage.CachedTokens = u.InputDetails.Cached.pointer()
			r.Usage.ReasoningTokens = u.OutputDetails.Reasoning.pointer()
		}
	}
	switch {
	case isObject(v.Error) || v.Output == nil:
		o.Fault = readFault(body)
		o.Form = FormMalformed
		return
	case v.Status == "failed" || v.Status == "cancelled":
		o.Fault = &Fault{Code: v.Status}
		return
	case v.Status == "queued" || v.Status == "in_progress": // the extra body asked for "background"
		o.Form = FormMalformed
		return
	case v.Status == "incomplete":
		r.FinishReason = v.Incomplete.Reason
		o.Finish = FinishLength
		if v.Incomplete.Reason == "content_filter" {
			o.Finish = FinishFilter
		}
	}
	var text strings.Builder
	for _, item := range *v.Output {
		if item.Type != "message" {
			continue
		}
		for _, part := range item.Content {
			switch part.Type {
			case "output_text":
				text.WriteString(string(part.Text))
			case "refusal":
				o.Finish = FinishRefusal
			}
		}
	}
	r.Text = text.String()
	switch {
	case len(*v.Output) == 0 && o.Finish == FinishStop:
		o.Form = FormNoChoices
	case blank(r.Text):
		o.Form = FormEmpty
	}
}

type referenceParts string

func (t *referenceParts) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		*t = referenceParts(stringOf(raw))
	case '[':
		var parts []struct {
			Type string    `json:"type"`
			Text looseText `json:"text"`
		}
		decode(raw, &parts)
		var b strings.Builder
		for _, p := range parts {
			if p.Type == "text" || p.Type == "output_text" {
				b.WriteString(string(p.Text))
			}
		}
		*t = referenceParts(b.String())
	}
	return nil
}

func (c *count) UnmarshalJSON(raw []byte) error {
	*c = countOf(raw)
	return nil
}
