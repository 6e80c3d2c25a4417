package row

import (
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Messages reads the conversation in the row's member with this name, in the form of
// OpenAI's chat completions: a list of objects with a role, which is system (or
// developer), user or assistant, and a content, which is a text or a list of parts of
// type text. Anything else is an [*llm.Error] with [llm.ReasonInvalidRow] that names it.
func (r *Row) Messages(name string) ([]llm.Message, error) {
	list := r.member(name)
	if list == nil {
		return nil, invalidRow(r.body, fmt.Errorf("there is no member %q: it must be a list of messages", name))
	}
	if list[0] != '[' {
		return nil, invalidRow(r.body, fmt.Errorf("the member %q is no list of messages", name))
	}
	var messages []llm.Message
	for one := range jsonbytes.Elements(list) {
		m, err := readMessage(one)
		if err != nil {
			return nil, invalidRow(r.body, fmt.Errorf("message %d of %q: %w", len(messages)+1, name, err))
		}
		messages = append(messages, m)
	}
	if len(messages) == 0 {
		return nil, invalidRow(r.body, fmt.Errorf("the list of messages %q is empty", name))
	}
	return messages, nil
}

func readMessage(raw []byte) (m llm.Message, err error) {
	if raw[0] != '{' {
		return m, errors.New("is no object with role and content")
	}
	var role, content []byte
	for key, value := range jsonbytes.Members(raw) {
		switch name := string(key); {
		case name == "role":
			role = value
		case name == "content":
			content = value
		case value[0] != 'n': // null is as good as missing
			return m, fmt.Errorf("%q is not supported: there are role and content", name)
		}
	}
	if m.Role, err = llm.ParseRole(textOf(role)); err != nil {
		return m, err
	}
	switch {
	case len(content) == 0 || content[0] == 'n':
		return m, errors.New("has no content")
	case content[0] == '"':
		m.Text = jsonbytes.Text(content)
		return m, nil
	case content[0] != '[':
		return m, errors.New("the content is neither a text nor a list of parts")
	}
	m.Parts = []llm.Part{}
	for one := range jsonbytes.Elements(content) {
		p, err := readPart(one)
		if err != nil {
			return m, fmt.Errorf("part %d: %w", len(m.Parts)+1, err)
		}
		m.Parts = append(m.Parts, p)
	}
	if len(m.Parts) == 0 {
		return m, errors.New("the content is an empty list")
	}
	return m, nil
}

func readPart(raw []byte) (p llm.Part, err error) {
	if raw[0] != '{' {
		return p, errors.New("is no object with type and text")
	}
	if kind := textOf(jsonbytes.Find(raw, "type")); kind != "text" {
		return p, fmt.Errorf("the type %q is not supported: there is text", kind)
	}
	text := jsonbytes.Find(raw, "text")
	if !isText(text) {
		return p, errors.New("has no text")
	}
	return llm.Part{Text: jsonbytes.Text(text)}, nil
}

func isText(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// textOf returns the text of a string, and "" of anything else.
func textOf(value []byte) string {
	if !isText(value) {
		return ""
	}
	return jsonbytes.Text(value)
}
