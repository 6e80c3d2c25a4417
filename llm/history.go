package llm

import (
	"fmt"
	"slices"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// isTurn reports whether a message has more than a content that the model or the caller has
// written, so that each wire format has a form of its own for it.
func (m *Message) isTurn() bool {
	return m.Role == RoleTool || len(m.Calls) > 0 || m.Refusal != "" || m.Name != ""
}

// checkHistory reports what of the earlier calls of a conversation a wire format can't
// carry. objects says that the arguments of a call must be an object there, and named that
// an answer has the name of the function that was called.
func checkHistory(messages []Message, objects, named bool) error {
	for i := range messages {
		m := &messages[i]
		if m.Name != "" && m.Role != RoleTool {
			// The name of a tool's answer says nothing that the call does not.
			return &NoPlaceError{Member: fmt.Sprintf("messages[%d].name", i)}
		}
		for j := range m.Calls {
			if objects && !isObject(m.Calls[j].Arguments) {
				return &NoPlaceError{
					Member: fmt.Sprintf("messages[%d].tool_calls[%d].function.arguments", i, j),
					Reason: "this provider takes an object alone",
				}
			}
		}
		if named && m.Role == RoleTool && calledName(messages[:i], m.CallID) == "" {
			return &NoPlaceError{
				Member: fmt.Sprintf("messages[%d].tool_call_id", i),
				Reason: "no earlier message makes this call, and this provider wants the " +
					"name of the function",
			}
		}
	}
	return nil
}

// calledName returns the name of the function that the newest call with this id calls, or
// "" if there is no such call.
func calledName(messages []Message, id string) string {
	for i := range slices.Backward(messages) {
		for j := range messages[i].Calls {
			if messages[i].Calls[j].ID == id {
				return messages[i].Calls[j].Name
			}
		}
	}
	return ""
}

// appendArguments appends the arguments of a call as the text that OpenAI's formats have.
func (c *ToolCall) appendArguments(dst []byte) []byte {
	if len(c.Arguments) > 0 && c.Arguments[0] == '"' {
		return append(dst, c.Arguments...)
	}
	return jsonbytes.AppendString(dst, []byte(c.Arguments))
}

// appendChatTurn appends a message of chat completions, which have a member for everything.
func appendChatTurn(w *turnWriter, dst []byte, r *Request, m *Message) []byte {
	switch {
	case m.Parts != nil:
		dst = w.appendParts(dst, r, string(m.Role), m.Parts)
	case m.Text == "" && m.Role == RoleAssistant:
		dst = append(dst, `{"role":"assistant","content":null}`...)
	default:
		dst = appendMessage(dst, string(m.Role), m.Text)
	}
	dst = dst[:len(dst)-1] // its brace
	if m.Name != "" {
		dst = appendMember(dst, "name", m.Name)
	}
	if m.CallID != "" {
		dst = appendMember(dst, "tool_call_id", m.CallID)
	}
	if m.Refusal != "" {
		dst = appendMember(dst, "refusal", m.Refusal)
	}
	for i := range m.Calls {
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		c := &m.Calls[i]
		dst = jsonbytes.AppendString(append(dst, `{"id":`...), c.ID)
		dst = jsonbytes.AppendString(append(dst, `,"type":"function","function":{"name":`...),
			c.Name)
		dst = append(c.appendArguments(append(dst, `,"arguments":`...)), "}}"...)
	}
	if len(m.Calls) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// appendResponsesTurn appends the items of responses that a message becomes: calls and their
// answers are items of their own there.
func appendResponsesTurn(w *turnWriter, dst []byte, r *Request, m *Message) []byte {
	first := len(dst)
	next := func() {
		if len(dst) > first {
			dst = append(dst, ',')
		}
	}
	if m.Role == RoleTool {
		dst = jsonbytes.AppendString(append(dst, `{"type":"function_call_output","call_id":`...),
			m.CallID)
		return append(appendMember(dst, "output", m.content()), '}')
	}
	switch {
	case m.Parts != nil:
		dst = w.appendParts(dst, r, string(m.Role), m.Parts)
	case m.Text != "":
		dst = appendMessage(dst, string(m.Role), m.Text)
	}
	if m.Refusal != "" {
		next()
		dst = append(appendMember(append(dst,
			`{"role":"assistant","content":[{"type":"refusal"`...), "refusal", m.Refusal), "}]}"...)
	}
	for i := range m.Calls {
		next()
		c := &m.Calls[i]
		dst = jsonbytes.AppendString(append(dst, `{"type":"function_call","call_id":`...), c.ID)
		dst = append(appendMember(dst, "name", c.Name), `,"arguments":`...)
		dst = append(c.appendArguments(dst), '}')
	}
	return dst
}

// appendAnthropicTurn appends a message of Anthropic, in which calls and their answers are
// blocks beside those of text. A refusal is what the model has said.
func appendAnthropicTurn(w *turnWriter, dst []byte, r *Request, m *Message) []byte {
	return w.appendBlocks(dst, r, m, func(dst []byte, c *ToolCall) []byte {
		dst = jsonbytes.AppendString(append(dst, `{"type":"tool_use","id":`...), c.ID)
		dst = append(appendMember(dst, "name", c.Name), `,"input":`...)
		return append(append(dst, c.Arguments...), '}')
	})
}

// appendGeminiTurn appends a message of Gemini, in which calls are parts beside those of
// text.
func appendGeminiTurn(w *turnWriter, dst []byte, r *Request, m *Message) []byte {
	return w.appendBlocks(dst, r, m, func(dst []byte, c *ToolCall) []byte {
		dst = jsonbytes.AppendString(append(dst, `{"functionCall":{"name":`...), c.Name)
		return append(append(append(dst, `,"args":`...), c.Arguments...), "}}"...)
	})
}

// appendBlocks appends a message of the model as a list of blocks: its content, its refusal
// and its calls.
func (w *turnWriter) appendBlocks(
	dst []byte, r *Request, m *Message, call func(dst []byte, c *ToolCall) []byte,
) []byte {
	parts := m.Parts
	if parts == nil && m.Text != "" {
		parts = []Part{{Text: m.Text}}
	}
	if m.Refusal != "" {
		parts = append(slices.Clip(parts), Part{Text: m.Refusal})
	}
	dst = w.appendParts(dst, r, w.role(m), parts)
	dst = dst[:len(dst)-len("]}")]
	for i := range m.Calls {
		if i > 0 || len(parts) > 0 {
			dst = append(dst, ',')
		}
		dst = call(dst, &m.Calls[i])
	}
	return append(dst, "]}"...)
}

// appendAnthropicAnswers appends the answers of tools to one message of the model: the
// blocks of one message, as Anthropic wants them.
func appendAnthropicAnswers(dst []byte, _, answers []Message) []byte {
	dst = append(dst, `{"role":"user","content":[`...)
	for i := range answers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendString(append(dst, `{"type":"tool_result","tool_use_id":`...),
			answers[i].CallID)
		dst = append(appendMember(dst, "content", answers[i].content()), '}')
	}
	return append(dst, "]}"...)
}

// appendGeminiAnswers appends the answers of tools to one message of the model: the parts of
// one content. An answer is an object there, and a text is its member output.
func appendGeminiAnswers(dst []byte, before, answers []Message) []byte {
	dst = append(dst, `{"role":"user","parts":[`...)
	for i := range answers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendString(append(dst, `{"functionResponse":{"name":`...),
			calledName(before, answers[i].CallID))
		dst = append(dst, `,"response":`...)
		text := answers[i].content()
		if start := jsonbytes.SkipSpace([]byte(text), 0); start < len(text) && text[start] == '{' &&
			jsonbytes.Valid([]byte(text)) {
			dst = append(dst, text...)
		} else {
			dst = append(jsonbytes.AppendString(append(dst, `{"output":`...), text), '}')
		}
		dst = append(dst, "}}"...)
	}
	return append(dst, "]}"...)
}
