package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Tool is a function that the model may call in place of an answer, or beside it. Nothing
// calls it: the calls are part of the [Reply].
type Tool struct {
	// Name is 1 to 64 letters, digits, underscores and dashes: what all providers take.
	Name string
	// Description says what the function is for. If it is empty, none is sent.
	Description string
	// Parameters is the JSON Schema of the arguments, an object. If it is empty, the
	// function takes none.
	Parameters json.RawMessage
	// Strict asks the provider to keep to the schema. Gemini has no place for it.
	Strict bool
}

// ToolMode says whether the model has to call a tool.
type ToolMode string

const (
	// ToolsAuto leaves it to the model. It is what providers do where no mode is sent.
	ToolsAuto ToolMode = "auto"
	// ToolsNone forbids calls.
	ToolsNone ToolMode = "none"
	// ToolsRequired has the model call one tool or several.
	ToolsRequired ToolMode = "required"
	// ToolsFunction has the model call the function of [ToolChoice.Function].
	ToolsFunction ToolMode = "function"
)

// ToolChoice says which of the tools the model calls. Its zero value is not sent.
type ToolChoice struct {
	Mode ToolMode
	// Function is a tool's name with [ToolsFunction]. It is empty otherwise.
	Function string
}

// ToolCall is a call of a tool that the model asks for.
type ToolCall struct {
	// ID is the provider's id of the call. Gemini gives none.
	ID string
	// Name is the tool's name.
	Name string
	// Arguments is the JSON value of the arguments, or a JSON string that holds the
	// model's text where that is not JSON.
	Arguments json.RawMessage
}

// ToolError is what is wrong with a tool, and where.
type ToolError struct {
	// Path leads to the member that is wrong, such as function, name.
	Path []string
	Text string
}

// Error implements error.
func (e *ToolError) Error() string {
	if len(e.Path) == 0 {
		return e.Text
	}
	return strings.Join(e.Path, ".") + ": " + e.Text
}

// toolName is what OpenAI, Anthropic and Gemini all take.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// ParseTool reads a tool in the form of OpenAI's chat completions:
//
//	{"type": "function", "function": {"name": "label", "parameters": {"type": "object", …}}}
//
// The error joins one [*ToolError] for each thing that is wrong.
func ParseTool(raw []byte) (t Tool, err error) {
	var errs []error
	fail := func(text string, path ...string) { errs = append(errs, &ToolError{path, text}) }
	const form = `write it as {"type": "function", "function": {"name": …, "parameters": …}}`
	if !jsonbytes.Valid(raw) || !isObject(raw[jsonbytes.SkipSpace(raw, 0):]) {
		return t, &ToolError{nil, "not a tool: " + form}
	}
	var kind, function []byte
	for key, value := range jsonbytes.Members(raw) {
		switch string(key) {
		case "type":
			kind = value
		case "function":
			function = value
		default:
			fail("is unknown: "+form, string(key))
		}
	}
	if word := textOf(kind); word != "function" {
		fail(fmt.Sprintf("%q is not supported: a tool is a function", word), "type")
	}
	if !isObject(function) {
		fail("is missing: it has the tool's name, description and parameters", "function")
		return t, errors.Join(errs...)
	}
	t.read(function, func(text, member string) { fail(text, "function", member) })
	return t, errors.Join(errs...)
}

// read reads the members of a function.
func (t *Tool) read(function []byte, fail func(text, member string)) {
	named := false
	for key, value := range jsonbytes.Members(function) {
		switch member := string(key); {
		case member == "name":
			named = true
			if t.Name = textOf(value); !toolName.MatchString(t.Name) {
				fail("must be a text of 1 to 64 letters, digits, _ and -", member)
			}
		case value[0] == 'n': // null is as good as missing
		case member == "description":
			if t.Description = textOf(value); value[0] != '"' {
				fail("must be a text", member)
			}
		case member == "parameters":
			t.Parameters = slices.Clone(value)
			if !isObject(value) || textOf(jsonbytes.Find(value, "type")) != "object" {
				fail(`must be a JSON Schema of the type "object"`, member)
			}
		case member == "strict":
			if t.Strict = isTrue(value); !t.Strict && value[0] != 'f' {
				fail("must be true or false", member)
			}
		default:
			fail("is unknown: there are name, description, parameters and strict", member)
		}
	}
	if !named {
		fail("is missing", "name")
	}
}

// ParseTools reads a list of tools, each as [ParseTool] reads it. No two have one name.
func ParseTools(raw []byte) (tools []Tool, err error) {
	if !jsonbytes.Valid(raw) || raw[jsonbytes.SkipSpace(raw, 0)] != '[' {
		return nil, errors.New("not a list of tools")
	}
	var errs []error
	for one := range jsonbytes.Elements(raw[jsonbytes.SkipSpace(raw, 0):]) {
		t, err := ParseTool(one)
		if err == nil && HasTool(tools, t.Name) {
			err = fmt.Errorf("function.name: %q is the name of an earlier tool", t.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tool %d: %w", len(tools)+1, err))
		}
		tools = append(tools, t)
	}
	return tools, errors.Join(errs...)
}

// HasTool reports whether a tool has the name.
func HasTool(tools []Tool, name string) bool {
	return slices.ContainsFunc(tools, func(t Tool) bool { return t.Name == name })
}

// ParseToolChoice reads a choice among tools: auto, none, required, a tool's name, or the
// object that [ReadToolChoice] reads.
func ParseToolChoice(word string, tools []Tool) (ToolChoice, error) {
	switch mode := ToolMode(word); {
	case word == "":
		return ToolChoice{}, nil
	case len(tools) == 0:
		return ToolChoice{}, errors.New("there are no tools to choose from")
	case mode == ToolsAuto || mode == ToolsNone || mode == ToolsRequired:
		return ToolChoice{Mode: mode}, nil
	case HasTool(tools, word):
		return ToolChoice{Mode: ToolsFunction, Function: word}, nil
	case jsonbytes.Valid([]byte(word)) && isObject([]byte(word)):
		return ReadToolChoice([]byte(word), tools)
	}
	names := make([]string, len(tools))
	for i := range tools {
		names[i] = tools[i].Name
	}
	return ToolChoice{}, fmt.Errorf("%q is no tool: choose auto, none, required, or one of %s",
		word, strings.Join(names, ", "))
}

// ReadToolChoice reads a choice in the form of OpenAI's chat completions: a word, or an
// object with the type function and the name of one.
func ReadToolChoice(raw []byte, tools []Tool) (ToolChoice, error) {
	if !isReported(raw) {
		return ToolChoice{}, nil
	}
	if !isObject(raw) {
		choice, err := ParseToolChoice(textOf(raw), tools)
		if err == nil && (raw[0] != '"' || choice.Mode == ToolsFunction) {
			err = errors.New(`must be auto, none, required, or {"type": "function", "function": ` +
				`{"name": …}}`)
		}
		return choice, err
	}
	kind, function := typed(raw, "function")
	name := textOf(jsonbytes.Find(function, "name"))
	if kind != "function" || !HasTool(tools, name) {
		return ToolChoice{}, fmt.Errorf("is of the type %q and names %q, which is no function "+
			"among the tools", kind, name)
	}
	return ToolChoice{Mode: ToolsFunction, Function: name}, nil
}

// appendList appends the tools as the elements of a list, each by one.
func appendList(dst []byte, tools []Tool, one func(dst []byte, t *Tool) []byte) []byte {
	for i := range tools {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, &tools[i])
	}
	return append(dst, ']')
}

// appendName appends the members of a tool that all wire formats call alike.
func (t *Tool) appendName(dst []byte) []byte {
	dst = jsonbytes.AppendString(append(dst, `"name":`...), t.Name)
	if t.Description != "" {
		dst = jsonbytes.AppendString(append(dst, `,"description":`...), t.Description)
	}
	return dst
}

// appendParameters appends the schema of the arguments under a name. Anthropic and
// responses demand one of a function without arguments, too.
func (t *Tool) appendParameters(dst []byte, name string) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	if len(t.Parameters) == 0 {
		return append(dst, `{"type":"object","properties":{}}`...)
	}
	return append(dst, t.Parameters...)
}

// appendStrict appends the member strict, unless it is false and the wire format's
// default.
func (t *Tool) appendStrict(dst []byte, always bool) []byte {
	switch {
	case t.Strict:
		return append(dst, `,"strict":true`...)
	case always:
		return append(dst, `,"strict":false`...)
	}
	return dst
}

// appendChatTools appends the tools of chat completions.
func appendChatTools(dst []byte, r *Request) []byte {
	if len(r.Tools) == 0 {
		return dst
	}
	dst = appendList(append(dst, `,"tools":[`...), r.Tools, func(dst []byte, t *Tool) []byte {
		dst = t.appendName(append(dst, `{"type":"function","function":{`...))
		return append(t.appendStrict(t.appendParameters(dst, "parameters"), false), "}}"...)
	})
	return r.ToolChoice.appendOpenAI(dst, `{"type":"function","function":{"name":`, "}}")
}

// appendResponsesTools appends the tools of responses, where a function is strict unless
// the request says otherwise.
func appendResponsesTools(dst []byte, r *Request) []byte {
	if len(r.Tools) == 0 {
		return dst
	}
	dst = appendList(append(dst, `,"tools":[`...), r.Tools, func(dst []byte, t *Tool) []byte {
		dst = t.appendName(append(dst, `{"type":"function",`...))
		return append(t.appendStrict(t.appendParameters(dst, "parameters"), true), '}')
	})
	return r.ToolChoice.appendOpenAI(dst, `{"type":"function","name":`, "}")
}

// appendOpenAI appends a tool_choice of OpenAI's formats: a word, or a function's name
// between open and end.
func (c *ToolChoice) appendOpenAI(dst []byte, open, end string) []byte {
	switch c.Mode {
	case "":
		return dst
	case ToolsFunction:
		dst = append(append(dst, `,"tool_choice":`...), open...)
		return append(jsonbytes.AppendString(dst, c.Function), end...)
	case ToolsAuto, ToolsNone, ToolsRequired:
	}
	return jsonbytes.AppendString(append(dst, `,"tool_choice":`...), string(c.Mode))
}

// appendAnthropicTools appends the tools of Anthropic's messages.
func appendAnthropicTools(dst []byte, r *Request) []byte {
	if len(r.Tools) == 0 {
		return dst
	}
	dst = appendList(append(dst, `,"tools":[`...), r.Tools, func(dst []byte, t *Tool) []byte {
		dst = t.appendParameters(t.appendName(append(dst, '{')), "input_schema")
		return append(t.appendStrict(dst, false), '}')
	})
	if r.ToolChoice.Mode == "" {
		return dst
	}
	kind := map[ToolMode]string{
		ToolsAuto: "auto", ToolsNone: "none", ToolsRequired: "any",
		ToolsFunction: "tool",
	}[r.ToolChoice.Mode]
	dst = append(append(append(dst, `,"tool_choice":{"type":"`...), kind...), '"')
	if r.ToolChoice.Mode == ToolsFunction {
		dst = jsonbytes.AppendString(append(dst, `,"name":`...), r.ToolChoice.Function)
	}
	return append(dst, '}')
}

// appendGeminiTools appends the tools of Gemini.
func appendGeminiTools(dst []byte, r *Request) []byte {
	if len(r.Tools) == 0 {
		return dst
	}
	dst = appendList(append(dst, `,"tools":[{"functionDeclarations":[`...), r.Tools,
		func(dst []byte, t *Tool) []byte {
			dst = t.appendName(append(dst, '{'))
			if len(t.Parameters) > 0 { // it refuses an object without properties
				dst = t.appendParameters(dst, "parametersJsonSchema")
			}
			return append(dst, '}')
		})
	dst = append(dst, "}]"...)
	if r.ToolChoice.Mode == "" {
		return dst
	}
	mode := map[ToolMode]string{
		ToolsAuto: "AUTO", ToolsNone: "NONE", ToolsRequired: "ANY",
		ToolsFunction: "ANY",
	}[r.ToolChoice.Mode]
	dst = append(append(append(dst, `,"toolConfig":{"functionCallingConfig":{"mode":"`...),
		mode...), '"')
	if r.ToolChoice.Mode == ToolsFunction {
		dst = append(jsonbytes.AppendString(append(dst, `,"allowedFunctionNames":[`...),
			r.ToolChoice.Function), ']')
	}
	return append(dst, "}}"...)
}
