package row

import (
	"errors"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Messages reads the conversation in the row's member with this name, in the form of
// OpenAI's chat completions: a list of objects with a role, which is system (or
// developer), user, assistant or tool, and a content, which is a text or a list of parts
// of type text, image_url, file or input_audio. A message of the model may have calls of
// tools instead, and one of the role tool is the answer to such a call. The media are not
// read: each has a [llm.Media.Source] and no content yet. Anything else is an
// [*llm.Error] with [llm.ReasonInvalidRow] that names it.
func (r *Row) Messages(name string) ([]llm.Message, error) {
	list := r.member(name)
	if list == nil {
		return nil, invalidRow(r.body, fmt.Errorf("there is no member %q: it must be a list of "+
			"messages", name))
	}
	if list[0] != '[' {
		return nil, invalidRow(r.body, fmt.Errorf("the member %q is no list of messages", name))
	}
	return r.readMessages(list, name)
}

// readMessages reads a list of messages, which the row calls name.
func (r *Row) readMessages(list []byte, name string) (messages []llm.Message, err error) {
	for one := range jsonbytes.Elements(list) {
		if len(messages) == llm.MaxMessages {
			return nil, invalidRow(r.body, fmt.Errorf("the list of messages %q has more than %d",
				name, llm.MaxMessages))
		}
		m, err := readMessage(one)
		if err != nil {
			return nil, invalidRow(r.body, fmt.Errorf("message %d of %q: %w", len(messages)+1, name,
				err))
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
		case value[0] == 'n': // as good as missing
		case name == "content":
			content = value
		case name == "name":
			m.Name, err = textMemberOf(value)
		case name == "refusal":
			m.Refusal, err = textMemberOf(value)
		case name == "tool_call_id":
			m.CallID, err = textMemberOf(value)
		case name == "tool_calls":
			m.Calls, err = readCalls(value)
		default:
			return m, fmt.Errorf("%q is not supported: there are role, content, name, refusal, "+
				"tool_calls and tool_call_id", name)
		}
		if err != nil {
			return m, fmt.Errorf("%q %w", key, err)
		}
	}
	if m.Role, err = readRole(role, &m); err != nil {
		return m, err
	}
	switch {
	case len(content) == 0 && (len(m.Calls) > 0 || m.Refusal != ""):
		return m, nil
	case len(content) == 0:
		return m, errors.New("has no content")
	case content[0] == '"':
		m.Text = jsonbytes.Text(content)
		return m, nil
	case content[0] != '[':
		return m, errors.New("the content is neither a text nor a list of parts")
	}
	m.Parts = []llm.Part{}
	for one := range jsonbytes.Elements(content) {
		if len(m.Parts) == llm.MaxParts {
			return m, fmt.Errorf("more than %d parts", llm.MaxParts)
		}
		p, err := readPart(one)
		if err != nil {
			return m, fmt.Errorf("part %d: %w", len(m.Parts)+1, err)
		}
		if p != nil {
			m.Parts = append(m.Parts, *p)
		}
	}
	if len(m.Parts) == 0 {
		return m, errors.New("the content is an empty list")
	}
	return m, nil
}

// readRole reads the role of a message, which says what else it may have.
func readRole(value []byte, m *llm.Message) (role llm.Role, err error) {
	if name := textOf(value); name == string(llm.RoleTool) {
		role = llm.RoleTool
	} else if role, err = llm.ParseRole(name); err != nil {
		return role, fmt.Errorf("%w, or tool for the answer to a call", err)
	}
	switch {
	case role == llm.RoleTool && m.CallID == "":
		return role, errors.New(`has the role tool and no "tool_call_id"`)
	case role != llm.RoleTool && m.CallID != "":
		return role, errors.New(`"tool_call_id" is for the role tool`)
	case role != llm.RoleAssistant && (len(m.Calls) > 0 || m.Refusal != ""):
		return role, errors.New(`"tool_calls" and "refusal" are for the role assistant`)
	}
	return role, nil
}

func textMemberOf(value []byte) (string, error) {
	if !isText(value) {
		return "", errors.New("must be a text")
	}
	return jsonbytes.Text(value), nil
}

// readCalls reads the tool calls of a message. Their arguments are a text there, which is
// kept as a value where it is one.
func readCalls(list []byte) (calls []llm.ToolCall, err error) {
	if list[0] != '[' {
		return nil, errors.New("must be a list of calls")
	}
	for one := range jsonbytes.Elements(list) {
		function := findIn(one, "function")
		id, name, arguments := findIn(one, "id"), findIn(function, "name"),
			findIn(function, "arguments")
		if !isText(id) || !isText(name) || !isText(arguments) ||
			textOf(findIn(one, "type")) != "function" {
			return nil, errors.New(`must be calls of functions: {"id": …, "type": "function", ` +
				`"function": {"name": …, "arguments": …}}`)
		}
		c := llm.ToolCall{ID: jsonbytes.Text(id), Name: jsonbytes.Text(name), Arguments: arguments}
		switch text := []byte(strings.TrimSpace(jsonbytes.Text(arguments))); {
		case len(text) == 0: // some servers write so that there are none
			c.Arguments = []byte("{}")
		case jsonbytes.Valid(text) && text[0] != '"':
			c.Arguments = text
		}
		calls = append(calls, c)
	}
	return calls, nil
}

// findIn returns a member of a value that may be anything, or nil.
func findIn(value []byte, name string) []byte {
	if len(value) == 0 || value[0] != '{' {
		return nil
	}
	return jsonbytes.Find(value, name)
}

// readPart reads one part. It returns nil for media whose source is empty, which are left
// out.
func readPart(raw []byte) (*llm.Part, error) {
	if raw[0] != '{' {
		return nil, errors.New("is no object with type and text")
	}
	var m llm.Media
	switch kind := textOf(jsonbytes.Find(raw, "type")); kind {
	case "text":
		text := jsonbytes.Find(raw, "text")
		if !isText(text) {
			return nil, errors.New("has no text")
		}
		return &llm.Part{Text: jsonbytes.Text(text)}, nil
	case "image_url":
		m.Kind = llm.KindImage
		if err := readMedia(raw, kind, "url", &m.Source,
			textMember{"detail", &m.Detail}); err != nil {
			return nil, err
		}
		if err := llm.CheckDetail(m.Detail); err != nil {
			return nil, err
		}
	case "file":
		m.Kind = llm.KindFile
		if err := readMedia(raw, kind, "file_data", &m.Source,
			textMember{"filename", &m.Name}); err != nil {
			return nil, err
		}
		m.Source = fromBase64(m.Source)
	case "input_audio":
		m.Kind = llm.KindAudio
		var format string // the content says it
		if err := readMedia(raw, kind, "data", &m.Source,
			textMember{"format", &format}); err != nil {
			return nil, err
		}
		m.Source = fromBase64(m.Source)
	default:
		return nil, fmt.Errorf("the type %q is not supported: there are text, image_url, file "+
			"and input_audio", kind)
	}
	if m.Source == "" {
		return nil, nil
	}
	return &llm.Part{Media: &m}, nil
}

// fromBase64 makes a data: URL of bare base64, which OpenAI has for sounds. Base64 has
// neither the colon of an address nor the dot before a path's extension.
func fromBase64(source string) string {
	if source == "" || strings.ContainsAny(source, ":.") {
		return source
	}
	return "data:;base64," + source
}

// textMember is a member with a text, and where that goes.
type textMember struct {
	name string
	to   *string
}

// readMedia reads the object of a part that has the name of the part's type.
func readMedia(raw []byte, kind, source string, to *string, others textMember) error {
	object := jsonbytes.Find(raw, kind)
	if len(object) == 0 || object[0] != '{' {
		return fmt.Errorf("has no object %q with %q", kind, source)
	}
	found := false
	for key, value := range jsonbytes.Members(object) {
		switch name := string(key); {
		case name == source && isText(value):
			found, *to = true, jsonbytes.Text(value)
		case name == source && value[0] == 'n': // left out, as one that is empty
			found = true
		case name == others.name && isText(value):
			*others.to = jsonbytes.Text(value)
		case value[0] != 'n':
			return fmt.Errorf("%q of %q is not supported: there are the texts %s and %s", name,
				kind, source, others.name)
		}
	}
	if !found {
		return fmt.Errorf("%q has no text %q", kind, source)
	}
	return nil
}

func isText(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// textOf returns the text of a string, and "" of anything else.
func textOf(value []byte) string {
	if !isText(value) {
		return ""
	}
	return jsonbytes.Text(value)
}
