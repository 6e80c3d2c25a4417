package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/yamldoc"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/schema"
	"go.yaml.in/yaml/v4"
)

// toolsBytesMax bounds the file of tools, and what it says as JSON, which is part of every
// request.
const toolsBytesMax = 1 << 20

// loadTools reads the tools that are offered with each request, and the choice among them.
func (p *Prompt) loadTools(cfg *config.PromptConfig) error {
	var err error
	if cfg.ToolsFile != "" {
		var text []byte
		if text, err = os.ReadFile(cfg.ToolsFile); err == nil {
			p.Base.Tools, err = parseTools(text)
		}
		if err != nil {
			return named("STAGE_TOOLS_FILE", err)
		}
	}
	if cfg.ToolChoice != "" && cfg.ToolsFile == "" {
		return named("STAGE_TOOL_CHOICE", errors.New("there are no tools to choose from: set STAGE_TOOLS_FILE, or unset this"))
	}
	p.Base.ToolChoice, err = llm.ParseToolChoice(cfg.ToolChoice, p.Base.Tools)
	return named("STAGE_TOOL_CHOICE", err)
}

// parseTools reads a list of tools in YAML or JSON. The error lists all that is wrong with
// them, each with its line and column.
func parseTools(text []byte) ([]llm.Tool, error) {
	if len(text) > toolsBytesMax {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(text), toolsBytesMax)
	}
	root, err := yamldoc.Parse(text)
	switch {
	case err != nil:
		return nil, err
	case root == nil || root.Kind != yaml.SequenceNode || len(root.Content) == 0:
		return nil, errors.New("not a list of tools: write each as {type: function, function: {name: …, description: …, parameters: …}}")
	}
	if _, err := yamldoc.JSON(root, toolsBytesMax); err != nil {
		return nil, err
	}
	var tools []llm.Tool
	var errs []error
	for i, item := range root.Content {
		tool, problems := parseTool(item)
		if len(problems) == 0 && llm.HasTool(tools, tool.Name) {
			problems = append(problems, &llm.ToolError{Path: []string{"function", "name"}, Text: fmt.Sprintf("%q is the name of an earlier tool", tool.Name)})
		}
		for _, problem := range problems {
			errs = append(errs, yamldoc.ErrorAt(item, problem.Path, "tool %d: %s", i+1, problem.Error()))
		}
		tools = append(tools, tool)
	}
	return tools, errors.Join(errs...)
}

// parseTool reads one tool, whose schema must be one that replies could be checked with.
func parseTool(n *yaml.Node) (tool llm.Tool, problems []*llm.ToolError) {
	raw, err := yamldoc.JSON(n, toolsBytesMax)
	if err == nil {
		tool, err = llm.ParseTool(raw)
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, one := range list {
		if problem, ok := errors.AsType[*llm.ToolError](one); ok {
			problems = append(problems, problem)
		} else if one != nil {
			problems = append(problems, &llm.ToolError{Text: one.Error()})
		}
	}
	if len(problems) > 0 || len(tool.Parameters) == 0 {
		return tool, problems
	}
	if _, err := schema.Parse(tool.Parameters, "the schema"); err != nil {
		problems = append(problems, &llm.ToolError{Path: []string{"function", "parameters"}, Text: err.Error()})
	}
	return tool, problems
}

// MayKeep returns the parts of replies that some result may have. A row's own request may
// bring tools along.
func (p *Prompt) MayKeep() llm.Keep {
	if p.question.requestField != "" {
		return p.format.Keep | llm.KeepToolCalls
	}
	return p.format.Keep
}

// asked are members of a request that ask a provider for a part of the reply, as paths.
// A member that is false, 0, null or empty asks for nothing.
var asked = []struct {
	part llm.Keep
	path string
}{
	{llm.KeepLogprobs, "logprobs"},
	{llm.KeepLogprobs, "top_logprobs"},
	{llm.KeepLogprobs, "generationConfig.responseLogprobs"},
	{llm.KeepReasoning, "generationConfig.thinkingConfig.includeThoughts"},
	{llm.KeepReasoning, "thinking"},                              // Anthropic
	{llm.KeepReasoning, "additionalModelRequestFields.thinking"}, // Bedrock
	{llm.KeepReasoning, "additionalModelRequestFields.reasoningConfig"},
	{llm.KeepReasoning, "reasoning"},         // OpenRouter, responses
	{llm.KeepReasoning, "include_reasoning"}, // OpenRouter, Groq
	{llm.KeepToolCalls, "tools"},
	{llm.KeepToolCalls, "toolConfig.tools"},   // Bedrock
	{llm.KeepCitations, "web_search_options"}, // OpenAI, Perplexity
	{llm.KeepCitations, "search_parameters"},  // xAI
	{llm.KeepCitations, "plugins"},            // OpenRouter
}

// KeepNotes says which parts of replies the extra body asks for that are paid for and not
// kept, with the first member that asks for each.
func (p *Prompt) KeepNotes() (notes []string) {
	told := p.Base.Kept()
	note := func(part llm.Keep, member string) {
		if part != 0 && !told.Has(part) {
			told |= part
			for name := range part.Names() {
				notes = append(notes, fmt.Sprintf("%q asks for %s, which results will not have: add %s to STAGE_RESPONSE_KEEP, or remove it",
					member, strings.ReplaceAll(name, "_", " "), name))
			}
		}
	}
	for _, a := range asked {
		value := find(p.Base.ExtraBody, a.path)
		switch {
		case !asksFor(value):
		case a.path == "reasoning" && !p.returnsReasoning(value):
		case a.part == llm.KeepToolCalls:
			for one := range jsonbytes.Elements(value) {
				note(partOfTool(one), a.path)
			}
		default:
			note(a.part, a.path)
		}
	}
	for one := range jsonbytes.Elements(find(p.Base.ExtraBody, "include")) { // responses
		if string(one) == `"message.output_text.logprobs"` {
			note(llm.KeepLogprobs, "include")
		}
	}
	return notes
}

// returnsReasoning reports whether a provider returns reasoning for a member reasoning.
// Responses do so only if a summary is asked for, OpenRouter unless it is left out.
func (p *Prompt) returnsReasoning(value json.RawMessage) bool {
	if p.llm.Provider == llm.OpenRouter {
		return string(find(value, "exclude")) != "true" && string(find(value, "enabled")) != "false"
	}
	return asksFor(find(value, "summary"))
}

// partOfTool returns the part of replies that a tool of an extra body leads to: calls for
// a function, citations for a provider's own search. It is 0 for any other tool.
func partOfTool(tool json.RawMessage) llm.Keep {
	switch text := strings.ToLower(string(tool)); {
	case strings.Contains(text, `"function"`), strings.Contains(text, "functiondeclarations"), strings.Contains(text, `"input_schema"`),
		strings.Contains(text, `"toolspec"`):
		return llm.KeepToolCalls
	case strings.Contains(text, "search"), strings.Contains(text, "grounding"): // web_search, web_search_20250305, googleSearch, nova_grounding
		return llm.KeepCitations
	}
	return 0
}

// find returns the member of an object at a path of names that dots separate, or nil.
func find(object json.RawMessage, path string) json.RawMessage {
	for name := range strings.SplitSeq(path, ".") {
		object = jsonbytes.Find(object, name)
	}
	return object
}

// asksFor reports whether a member asks for anything.
func asksFor(value json.RawMessage) bool {
	switch string(value) {
	case "", "null", "false", "0", "{}", "[]", `""`, `{"type":"disabled"}`:
		return false
	}
	return true
}
