package llm

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// The reference reads replies as the wire formats did at first: encoding/json fills structs. It is slow, but its types show
// what the formats are.

type referenceChatReply struct {
	ID      string                 `json:"id"`
	Model   string                 `json:"model"`
	Choices *[]referenceChatChoice `json:"choices"`
	Usage   *referenceChatUsage    `json:"usage"`
	Error   json.RawMessage        `json:"error"`
}

type referenceChatChoice struct {
	FinishReason referenceTold `json:"finish_reason"`
	Native       string        `json:"native_finish_reason"`
	Specific     struct {
		Native string `json:"native_finish_reason"`
	} `json:"provider_specific_fields"`
	Message *referenceChatMessage `json:"message"`
	Error   json.RawMessage       `json:"error"` // OpenRouter
}

type referenceChatMessage struct {
	Content referenceParts `json:"content"`
	Refusal looseText      `json:"refusal"`
	Calls   []struct {
		ID string `json:"id"`
	} `json:"tool_calls"`
	Call json.RawMessage `json:"function_call"`
}

type referenceChatUsage struct {
	Prompt        count `json:"prompt_tokens"`
	Completion    count `json:"completion_tokens"`
	PromptDetails struct {
		Cached  count `json:"cached_tokens"`
		Written count `json:"cache_write_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	referenceCommonUsage
}

type referenceCommonUsage struct {
	Total       count `json:"total_tokens"`
	Hits        count `json:"cache_read_input_tokens"`
	Created     count `json:"cache_creation_input_tokens"`
	Thoughts    count `json:"reasoning_tokens"`
	Ticks       count `json:"cost_in_usd_ticks"`
	Cost        any   `json:"cost"` // their types are asked below, so that a wrong one is no 0
	OwnKey      any   `json:"is_byok"`
	CostDetails struct {
		Upstream any `json:"upstream_inference_cost"`
	} `json:"cost_details"`
}

func (u *referenceCommonUsage) usage(t tally) *Usage {
	if !t.cached.reported {
		t.cached = u.Hits
	}
	if !t.written.reported {
		t.written = u.Created
	}
	if !t.reasoning.reported {
		t.reasoning = u.Thoughts
	}
	t.total = u.Total
	cost, ok := u.Cost.(float64)
	upstream, upstreamOK := u.CostDetails.Upstream.(float64)
	switch ok = ok && cost >= 0 && cost <= usdMax; {
	case !ok && u.Ticks.reported:
		cost, ok = float64(u.Ticks.n)/1e10, true
	case u.OwnKey == true:
		cost, ok = cost+upstream, ok && upstreamOK && upstream >= 0 && upstream <= usdMax
	}
	if ok {
		t.cost = amount{usd: cost, reported: true}
	}
	return t.usage()
}

func (u *referenceChatUsage) usage() *Usage {
	if u == nil {
		return nil
	}
	return u.referenceCommonUsage.usage(tally{
		prompt: u.Prompt, completion: u.Completion,
		cached: u.PromptDetails.Cached, written: u.PromptDetails.Written, reasoning: u.CompletionDetails.Reasoning,
	})
}

func referenceChat(body []byte, r *Reply, o *ending) {
	var v referenceChatReply
	if !decode(body, &v) {
		o.Form = formNotJSON
		return
	}
	r.ID, r.Model, r.Usage = v.ID, v.Model, v.Usage.usage()
	switch {
	case isError(v.Error) || v.Choices == nil:
		o.Fault = readFault(body)
		o.Form = formMalformed
		return
	case len(*v.Choices) == 0:
		o.Form = formNoChoices
		return
	}
	choice := &(*v.Choices)[0]
	c := chatChoice{finish: choice.FinishReason.text, ended: choice.FinishReason.there, native: choice.Native, own: choice.Specific.Native}
	if choice.Message != nil {
		c.answered, c.text = true, choice.Message.Content.text
		c.refused = choice.Message.Refusal != "" || choice.Message.Content.refused
		c.calls = isObject(choice.Message.Call)
		for _, call := range choice.Message.Calls {
			c.calls = c.calls || !strings.HasPrefix(call.ID, serverToolID)
		}
	}
	switch {
	case isError(choice.Error):
		o.Fault = faultOf(choice.Error)
	case slices.Contains([]string{"error", "ERROR", "abort", "network_error", "insufficient_system_resource"}, c.finish):
		o.Fault = &fault{Code: c.finish}
	case !c.answered && !c.cut():
		o.Form = formMalformed
		return
	}
	r.Text = c.text
	o.Finish, r.FinishReason = c.end()
	if blank(r.Text) {
		o.Form = formEmpty
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
		Lifetimes  struct {
			Short count `json:"ephemeral_5m_input_tokens"`
			Hour  count `json:"ephemeral_1h_input_tokens"`
		} `json:"cache_creation"`
		Details struct {
			Thinking count `json:"thinking_tokens"`
		} `json:"output_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func referenceMessages(body []byte, r *Reply, o *ending) {
	var v referenceMessagesReply
	if !decode(body, &v) {
		o.Form = formNotJSON
		return
	}
	r.ID, r.Model, r.FinishReason = v.ID, v.Model, v.StopReason
	if u := v.Usage; u != nil {
		// Here input_tokens leaves out what was read from or written to a cache.
		t := tally{prompt: u.Input, completion: u.Output, cached: u.CacheRead, written: u.CacheWrite, written1h: u.Lifetimes.Hour, reasoning: u.Details.Thinking}
		if sum := u.Lifetimes.Short.n + u.Lifetimes.Hour.n; sum > t.written.n {
			t.written = count{n: sum, reported: true}
		}
		t.prompt.n += t.cached.n + t.written.n
		t.prompt.bad = t.prompt.bad || t.cached.bad || t.written.bad || u.Lifetimes.Short.bad || u.Lifetimes.Hour.bad
		r.Usage = t.usage()
	}
	if isError(v.Error) || v.Content == nil {
		o.Fault = readFault(body)
		o.Form = formMalformed
		return
	}
	var text strings.Builder
	for _, part := range *v.Content {
		if part.Type == "text" {
			text.WriteString(string(part.Text))
		}
	}
	r.Text = text.String()
	o.Finish = endOf(messagesEnds, v.StopReason)
	if blank(r.Text) {
		o.Form = formEmpty
	}
}

type referenceGeminiReply struct {
	ResponseID   string `json:"responseId"`
	ModelVersion string `json:"modelVersion"`
	Candidates   []struct {
		FinishReason string `json:"finishReason"`
		Content      struct {
			Parts []struct {
				Text    looseText       `json:"text"`
				Thought bool            `json:"thought"`
				Call    json.RawMessage `json:"functionCall"`
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

func referenceGemini(body []byte, r *Reply, o *ending) {
	var v referenceGeminiReply
	if !decode(body, &v) {
		o.Form = formNotJSON
		return
	}
	r.ID, r.Model = v.ResponseID, v.ModelVersion
	if u := v.Usage; u != nil {
		// Thoughts are billed as output but not counted among the candidates.
		t := tally{prompt: u.Prompt, completion: u.Candidates, cached: u.Cached, reasoning: u.Thoughts, total: u.Total, omitsZeros: true}
		t.prompt.n += u.ToolPrompt.n
		t.completion.n += u.Thoughts.n
		t.prompt.bad = t.prompt.bad || u.ToolPrompt.bad
		t.completion.bad = t.completion.bad || u.Thoughts.bad
		r.Usage = t.usage()
	}
	switch {
	case isError(v.Error):
		o.Fault = readFault(body)
		o.Form = formMalformed
		return
	case len(v.Candidates) > 0:
	case v.PromptFeedback != nil && v.PromptFeedback.BlockReason != "":
		r.FinishReason = v.PromptFeedback.BlockReason
		o.Finish = finishFilter
		return
	case v.Usage != nil || v.PromptFeedback != nil || v.ModelVersion != "":
		o.Form = formNoChoices // this format leaves empty lists out
		return
	default:
		o.Fault = readFault(body)
		o.Form = formMalformed
		return
	}
	candidate := &v.Candidates[0]
	r.FinishReason = candidate.FinishReason
	var text strings.Builder
	calls := false
	for _, part := range candidate.Content.Parts {
		calls = calls || isObject(part.Call)
		if !part.Thought {
			text.WriteString(string(part.Text))
		}
	}
	r.Text = text.String()
	if o.Finish = endOf(geminiEnds, candidate.FinishReason); o.Finish == finishStop && calls {
		r.FinishReason, o.Finish = "functionCall", finishUnfinished
	}
	if blank(r.Text) {
		o.Form = formEmpty
	}
}

type referenceResponsesReply struct {
	ID         string          `json:"id"`
	Model      string          `json:"model"`
	Status     referenceTold   `json:"status"`
	Error      json.RawMessage `json:"error"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Output *[]struct {
		Type        string `json:"type"`
		Status      string `json:"status"`
		Phase       string `json:"phase"`
		Execution   string `json:"execution"`
		Environment struct {
			Type string `json:"type"`
		} `json:"environment"`
		Content []struct {
			Type    string          `json:"type"`
			Text    looseText       `json:"text"`
			Refusal json.RawMessage `json:"refusal"`
		} `json:"content"`
	} `json:"output"`
	Usage *struct {
		Input        count `json:"input_tokens"`
		Output       count `json:"output_tokens"`
		InputDetails struct {
			Cached  count `json:"cached_tokens"`
			Written count `json:"cache_write_tokens"`
		} `json:"input_tokens_details"`
		OutputDetails struct {
			Reasoning count `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
		referenceCommonUsage
	} `json:"usage"`
}

func referenceResponses(body []byte, r *Reply, o *ending) {
	var v referenceResponsesReply
	if !decode(body, &v) {
		o.Form = formNotJSON
		return
	}
	status := v.Status.text
	r.ID, r.Model, r.FinishReason = v.ID, v.Model, status
	if u := v.Usage; u != nil {
		r.Usage = u.usage(tally{
			prompt: u.Input, completion: u.Output,
			cached: u.InputDetails.Cached, written: u.InputDetails.Written, reasoning: u.OutputDetails.Reasoning,
		})
	}
	switch {
	case isError(v.Error) || v.Output == nil:
		o.Fault = readFault(body)
		o.Form = formMalformed
		return
	case status == "failed" || status == "cancelled":
		o.Fault = &fault{Code: status}
		return
	case status == "queued" || status == "in_progress": // the extra body asked for "background"
		o.Form = formMalformed
		return
	case status == "incomplete":
		r.FinishReason = cmp.Or(v.Incomplete.Reason, status)
		o.Finish = endOf(responsesEnds, r.FinishReason)
	case status != "completed" && v.Status.there:
		o.Finish = finishUnfinished
	}
	var text strings.Builder
	refused, unfinished := false, ""
	for _, item := range *v.Output {
		switch {
		case clientCalls[item.Type], item.Type == "shell_call" && item.Environment.Type == "local",
			item.Type == "tool_search_call" && item.Execution == "client":
			unfinished = item.Type
		case item.Type != "message":
			continue
		case item.Status == "incomplete":
			unfinished = item.Status
		}
		for _, part := range item.Content {
			if item.Type != "message" {
				break
			}
			refused = refused || isRefusal(part.Type, part.Refusal)
			if part.Type == "output_text" && (item.Phase == "" || item.Phase == "final_answer") {
				text.WriteString(string(part.Text))
			}
		}
	}
	r.Text = text.String()
	switch {
	case refused:
		o.Finish = finishRefusal
	case unfinished != "" && o.Finish == finishStop:
		r.FinishReason, o.Finish = unfinished, finishUnfinished
	}
	switch {
	case len(*v.Output) == 0 && o.Finish == finishStop:
		o.Form = formNoChoices
	case blank(r.Text):
		o.Form = formEmpty
	}
}

// referenceTold is a string, and whether the member is there.
type referenceTold struct {
	text  string
	there bool
}

func (t *referenceTold) UnmarshalJSON(raw []byte) error {
	t.there = true
	t.text = textOf(raw)
	return nil
}

type referenceParts struct {
	text    string
	refused bool
}

func (t *referenceParts) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		t.text = jsonbytes.Text(raw)
	case '[':
		var parts []struct {
			Type    string          `json:"type"`
			Text    looseText       `json:"text"`
			Refusal json.RawMessage `json:"refusal"`
		}
		decode(raw, &parts)
		var b strings.Builder
		for _, p := range parts {
			t.refused = t.refused || isRefusal(p.Type, p.Refusal)
			if p.Type == "text" || p.Type == "output_text" {
				b.WriteString(string(p.Text))
			}
		}
		t.text = b.String()
	}
	return nil
}

func (c *count) UnmarshalJSON(raw []byte) error {
	*c = countOf(raw)
	return nil
}

type referenceConverseReply struct {
	Output struct {
		Message struct {
			Content *[]struct {
				Text  looseText `json:"text"`
				Cited struct {
					Content []struct {
						Text looseText `json:"text"`
					} `json:"content"`
				} `json:"citationsContent"`
			} `json:"content"`
		} `json:"message"`
	} `json:"output"`
	StopReason string `json:"stopReason"`
	Usage      *struct {
		Input      count `json:"inputTokens"`
		Output     count `json:"outputTokens"`
		CacheRead  count `json:"cacheReadInputTokens"`
		CacheWrite count `json:"cacheWriteInputTokens"`
		Lifetimes  []struct {
			Tokens count  `json:"inputTokens"`
			TTL    string `json:"ttl"`
		} `json:"cacheDetails"`
	} `json:"usage"`
	Trace struct {
		Router struct {
			Model string `json:"invokedModelId"`
		} `json:"promptRouter"`
	} `json:"trace"`
}

func referenceConverse(body []byte, r *Reply, o *ending) {
	var v referenceConverseReply
	if !decode(body, &v) {
		o.Form = formNotJSON
		return
	}
	r.Model, r.FinishReason = v.Trace.Router.Model, v.StopReason
	if u := v.Usage; u != nil {
		// Here inputTokens leaves out what was read from or written to a cache.
		t := tally{prompt: u.Input, completion: u.Output, cached: u.CacheRead, written: u.CacheWrite}
		var short count
		for _, part := range u.Lifetimes {
			switch part.TTL {
			case "5m":
				short = part.Tokens
			case "1h":
				t.written1h = part.Tokens
			}
		}
		if sum := short.n + t.written1h.n; sum > t.written.n {
			t.written = count{n: sum, reported: true}
		}
		t.prompt.n += t.cached.n + t.written.n
		t.prompt.bad = t.prompt.bad || t.cached.bad || t.written.bad || short.bad || t.written1h.bad
		r.Usage = t.usage()
	}
	if v.Output.Message.Content == nil {
		o.Fault = readFault(body)
		o.Form = formMalformed
		return
	}
	var text strings.Builder
	for _, block := range *v.Output.Message.Content {
		text.WriteString(string(block.Text))
		for _, part := range block.Cited.Content {
			text.WriteString(string(part.Text))
		}
	}
	r.Text = text.String()
	o.Finish = endOf(converseEnds, v.StopReason)
	if blank(r.Text) {
		o.Form = formEmpty
	}
}
