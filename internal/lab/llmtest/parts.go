package llmtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// What a reply has beside its answer, if the request asks for it: calls of tools, log
// probabilities and reasoning, always the same for a prompt. A tool is called if the
// request demands a call, and the arguments satisfy its schema.

// object is a JSON object that is read or written without a type of its own.
type object = map[string]any

// parts are what a request asks for beside the answer.
type parts struct {
	tool      string // to be called in place of the answer, or ""
	schema    object // of its arguments
	logprobs  bool
	top       int // how many of the likeliest tokens
	reasoning bool
}

// reply answers a call in its wire format.
func reply(d dialect, c *call) []byte {
	if c.Inputs != nil {
		return d.answer(c, "")
	}
	text := answer(c)
	body := d.answer(c, text)
	var request object
	if json.Unmarshal(c.Body, &request) != nil {
		return body
	}
	var p parts
	var write func(p *parts, c *call, text string, into object)
	switch d.(type) {
	case openAI:
		p.readOpenAI(request)
		p.logprobs, p.reasoning = request["logprobs"] == true, request["reasoning_effort"] != nil && request["reasoning_effort"] != "none"
		write = writeChat
	case responses:
		p.readOpenAI(request)
		p.logprobs, p.reasoning = has(request["include"], "message.output_text.logprobs"), at(request, "reasoning", "summary") != nil
		write = writeResponses
	case anthropic, vertexClaude:
		p.readTools(request["tools"], "input_schema", at(request, "tool_choice", "type") == "any", at(request, "tool_choice", "name"))
		kind := at(request, "thinking", "type")
		p.reasoning = kind == "enabled" || kind == "adaptive"
		write = writeMessages
	case gemini, vertexGemini:
		p.readGemini(request)
		write = writeGemini
	case converse:
		p.readConverse(request)
		write = writeConverse
	}
	if c.stopped {
		return body
	}
	if p.tool == "" && !p.logprobs && !p.reasoning {
		return body
	}
	var out object
	_ = json.Unmarshal(body, &out) // it is ours
	write(&p, c, text, out)
	return encode(out)
}

// at returns what is at a path of members, or nil.
func at(v any, path ...string) any {
	for _, name := range path {
		members, _ := v.(object)
		v = members[name]
	}
	return v
}

// first returns the first element of a list as an object.
func first(v any) object {
	list, _ := v.([]any)
	if len(list) == 0 {
		return nil
	}
	o, _ := list[0].(object)
	return o
}

// has reports whether a list has an element.
func has(list, element any) bool {
	elements, _ := list.([]any)
	return slices.Contains(elements, element)
}

func (p *parts) readOpenAI(request object) {
	choice := request["tool_choice"]
	name := at(choice, "function", "name")
	if name == nil {
		name = at(choice, "name")
	}
	p.readTools(request["tools"], "parameters", choice == "required", name)
	if n, ok := request["top_logprobs"].(float64); ok {
		p.top = int(n)
	}
}

func (p *parts) readGemini(request object) {
	calling := at(request, "toolConfig", "functionCallingConfig")
	var name any
	if names, _ := at(calling, "allowedFunctionNames").([]any); len(names) > 0 {
		name = names[0]
	}
	p.readTools(first(request["tools"])["functionDeclarations"], "parametersJsonSchema", at(calling, "mode") == "ANY", name)
	settings := request["generationConfig"]
	p.logprobs = at(settings, "responseLogprobs") == true
	if n, ok := at(settings, "logprobs").(float64); ok {
		p.top = int(n)
	}
	p.reasoning = at(settings, "thinkingConfig", "includeThoughts") == true
}

// readTools finds the tool to be called: the named one, or the first if one is required.
func (p *parts) readTools(tools any, schema string, required bool, name any) {
	list, _ := tools.([]any)
	for _, one := range list {
		tool, _ := one.(object)
		if function, ok := tool["function"].(object); ok {
			tool = function
		}
		own, _ := tool["name"].(string)
		if own != "" && (own == name || required && name == nil) {
			p.tool = own
			p.schema, _ = tool[schema].(object)
			return
		}
	}
}

// arguments are those of the call.
func (p *parts) arguments(c *call) any {
	if p.schema == nil {
		return object{}
	}
	g := generator{root: p.schema, state: hash(c.Prompt)}
	return g.value(p.schema, 0)
}

// thoughts is the reasoning about a prompt.
func thoughts(c *call) string {
	return fmt.Sprintf("The prompt has %d characters.", len([]rune(c.Prompt)))
}

// tokensOf lists the words of a text with their logarithms, under the names of a wire
// format.
func (p *parts) tokensOf(text, logprob string) (chosen []any, likeliest [][]any) {
	entry := func(token string) object {
		return object{"token": token, logprob: -float64(hash(token)%1000) / 1000}
	}
	for token := range strings.SplitAfterSeq(text, " ") {
		chosen = append(chosen, entry(token))
		var top []any
		for i := range p.top {
			top = append(top, entry(token+strings.Repeat("'", i)))
		}
		likeliest = append(likeliest, top)
	}
	return chosen, likeliest
}

// openAITokens are the tokens in the form of OpenAI's formats.
func (p *parts) openAITokens(text string) []any {
	chosen, likeliest := p.tokensOf(text, "logprob")
	for i, one := range chosen {
		one.(object)["top_logprobs"] = append([]any{}, likeliest[i]...) //nolint:forcetypeassert // made above
	}
	return chosen
}

func writeChat(p *parts, c *call, text string, into object) {
	choice := first(into["choices"])
	message, _ := choice["message"].(object)
	if p.reasoning {
		message["reasoning_content"] = thoughts(c)
	}
	switch {
	case p.tool != "":
		message["content"], choice["finish_reason"] = nil, "tool_calls"
		message["tool_calls"] = []any{object{"id": c.id("call"), "type": "function", "function": object{"name": p.tool, "arguments": string(encode(p.arguments(c)))}}}
	case p.logprobs:
		choice["logprobs"] = object{"content": p.openAITokens(text), "refusal": nil}
	}
}

func writeResponses(p *parts, c *call, text string, into object) {
	output, _ := into["output"].([]any)
	switch {
	case p.tool != "":
		output = []any{object{
			"type": "function_call", "id": c.id("fc"), "call_id": c.id("call"), "status": "completed", "name": p.tool,
			"arguments": string(encode(p.arguments(c))),
		}}
	case p.logprobs:
		first(first(output)["content"])["logprobs"] = p.openAITokens(text)
	}
	if p.reasoning {
		output = append([]any{object{"type": "reasoning", "id": c.id("rs"), "summary": []any{object{"type": "summary_text", "text": thoughts(c)}}}}, output...)
	}
	into["output"] = output
}

func writeMessages(p *parts, c *call, _ string, into object) {
	content, _ := into["content"].([]any)
	if p.tool != "" {
		into["stop_reason"] = "tool_use"
		content = []any{object{"type": "tool_use", "id": c.id("toolu"), "name": p.tool, "input": p.arguments(c)}}
	}
	if p.reasoning {
		content = append([]any{object{"type": "thinking", "thinking": thoughts(c), "signature": "c2lnbmF0dXJl"}}, content...)
	}
	into["content"] = content
}

func writeGemini(p *parts, c *call, text string, into object) {
	candidate := first(into["candidates"])
	content, _ := candidate["content"].(object)
	list, _ := content["parts"].([]any)
	switch {
	case p.tool != "":
		list = []any{object{"functionCall": object{"name": p.tool, "args": p.arguments(c)}}}
	case p.logprobs:
		chosen, likeliest := p.tokensOf(text, "logProbability")
		var top []any
		for _, one := range likeliest {
			top = append(top, object{"candidates": one})
		}
		candidate["logprobsResult"] = object{"chosenCandidates": chosen, "topCandidates": top}
	}
	if p.reasoning {
		list = append([]any{object{"text": thoughts(c), "thought": true}}, list...)
	}
	content["parts"] = list
}
