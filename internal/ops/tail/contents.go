package tail

import (
	"bytes"
	"encoding/json"
	"strings"
)

// promptText returns what a request asks, as text: its messages, each below its role if
// there are several. A request of an unknown form is returned as it is.
func promptText(request []byte) string {
	var r map[string]any
	if json.Unmarshal(request, &r) != nil {
		return indented(request)
	}
	var turns []turn
	for _, name := range []string{"system", "instructions", "systemInstruction", "system_instruction"} {
		turns = add(turns, "system", textOf(r[name]))
	}
	for _, name := range []string{"messages", "input", "contents", "prompt"} {
		messages, several := r[name].([]any)
		if !several {
			turns = add(turns, "user", textOf(r[name]))
		}
		for _, m := range messages {
			message, _ := m.(map[string]any)
			role, _ := message["role"].(string)
			turns = add(turns, role, textOf(m))
		}
	}
	switch len(turns) {
	case 0:
		return indented(request)
	case 1:
		return turns[0].text
	}
	var b strings.Builder
	for i, t := range turns {
		if i > 0 {
			b.WriteString("\n\n")
		}
		b.WriteString("[" + t.role + "]\n" + t.text)
	}
	return b.String()
}

// turn is one message of a conversation.
type turn struct{ role, text string }

// add adds a message unless it is empty.
func add(turns []turn, role, text string) []turn {
	if text == "" {
		return turns
	}
	return append(turns, turn{role, text})
}

// replyText returns what a response answers, as text. A response of an unknown form, or
// without text, is returned as it is.
func replyText(response []byte) string {
	var r map[string]any
	if json.Unmarshal(response, &r) != nil {
		return indented(response)
	}
	for _, name := range []string{"choices", "output", "candidates", "content"} {
		if text := textOf(r[name]); text != "" {
			return text
		}
	}
	return indented(response)
}

// textOf collects the text of a message as the wire formats nest it: choices, their
// messages, contents and parts.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var texts []string
		for _, part := range v {
			if text := textOf(part); text != "" {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "\n")
	case map[string]any:
		for _, name := range []string{"message", "content", "parts", "text"} {
			if text := textOf(v[name]); text != "" {
				return text
			}
		}
	}
	return ""
}

// indented returns a body in a form that people can read: JSON over several lines, a string
// of JSON as its text, and anything else as it is.
func indented(body []byte) string {
	var text string
	var lines bytes.Buffer
	switch {
	case len(body) == 0:
		return ""
	case json.Unmarshal(body, &text) == nil:
		return text
	case json.Indent(&lines, body, "", "  ") == nil:
		return lines.String()
	}
	return string(bytes.ToValidUTF8(body, []byte("\ufffd")))
}
