package llm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Role is who speaks in a message.
type Role string

const (
	// RoleSystem is for instructions. Wire formats that have one place for these,
	// [Messages] and [GenerateContent], take system messages at the start of the
	// conversation alone.
	RoleSystem Role = "system"
	// RoleUser is for the caller.
	RoleUser Role = "user"
	// RoleAssistant is for the model.
	RoleAssistant Role = "assistant"
)

// ParseRole returns the role of a name. developer is another name for system.
func ParseRole(name string) (Role, error) {
	switch role := Role(name); role {
	case RoleSystem, RoleUser, RoleAssistant:
		return role, nil
	case "developer":
		return RoleSystem, nil
	}
	return "", fmt.Errorf("the role %q is unknown: write system, user or assistant", name)
}

// Message is one turn of a conversation, for example an example's question, or the answer
// to it.
type Message struct {
	Role Role
	// Text is the content.
	Text string
	// Parts is the content in several parts, in place of Text. It is sent as a list, even
	// if it has one element.
	Parts []Part
}

// Part is one part of a message's content.
type Part struct {
	// Text is the part's text.
	Text string
}

// HasSystem reports whether a conversation has a system message.
func HasSystem(messages []Message) bool {
	return slices.ContainsFunc(messages, func(m Message) bool { return m.Role == RoleSystem })
}

// text returns the content as one text.
func (m *Message) text() string {
	if m.Parts == nil {
		return m.Text
	}
	texts := make([]string, len(m.Parts))
	for i, p := range m.Parts {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

// Texts returns the texts of the messages.
func (r *Request) Texts() (texts []string) {
	for i := range r.Messages {
		texts = append(texts, r.Messages[i].text())
	}
	return texts
}

// Transcript returns what the model is asked as people read it. A single prompt is shown as
// it is, and of a conversation each message with its role above it, after the system prompt.
// withSystem has a single prompt shown like that, too.
func (r *Request) Transcript(withSystem bool) string {
	messages := r.Messages
	if len(messages) == 0 {
		messages = []Message{{Role: RoleUser, Text: r.Prompt}}
	}
	single := len(messages) == 1 && messages[0].Role == RoleUser
	if single && (!withSystem || r.System == "") {
		return messages[0].text()
	}
	if r.System != "" {
		messages = append([]Message{{Role: RoleSystem, Text: r.System}}, messages...)
	}
	var b strings.Builder
	for i := range messages {
		if i > 0 {
			b.WriteString("\n\n")
		}
		m := &messages[i]
		fmt.Fprintf(&b, "[%s]\n%s", m.Role, m.text())
	}
	return b.String()
}

// leadingSystem splits a conversation for the wire formats that have a place of its own
// for the system prompt: into the system messages that it begins with, and the rest.
func leadingSystem(messages []Message) (system, rest []Message) {
	n := slices.IndexFunc(messages, func(m Message) bool { return m.Role != RoleSystem })
	if n < 0 {
		n = len(messages)
	}
	return messages[:n], messages[n:]
}

// joinSystem returns the system prompt with the texts of system messages after it.
func joinSystem(prompt string, messages []Message) string {
	for i := range messages {
		switch text := messages[i].text(); {
		case prompt == "":
			prompt = text
		case text != "":
			prompt += "\n\n" + text
		}
	}
	return prompt
}

// checkLeadingSystem reports why a wire format with one place for the system prompt can't
// carry a conversation.
func checkLeadingSystem(messages []Message) error {
	_, rest := leadingSystem(messages)
	for i := range rest {
		if rest[i].Role == RoleSystem {
			return fmt.Errorf("message %d is a system message behind others, which this wire format has no place for; move it to the start",
				len(messages)-len(rest)+i+1)
		}
	}
	if len(rest) == 0 && len(messages) > 0 {
		return errors.New("the conversation has system messages alone; add one of the user")
	}
	return nil
}

// turnWriter appends messages in one wire format, without what is between them.
type turnWriter struct {
	model string // the wire format's name for [RoleAssistant]
	text  func(dst []byte, role, text string) []byte
	parts func(dst []byte, role string, parts []Part) []byte
}

// appendTurns appends the messages after the system prompt: the context, the conversation
// or the prompt, and a rejected answer with the complaint about it.
func (w *turnWriter) appendTurns(dst []byte, r *Request, messages []Message) []byte {
	first := len(dst)
	next := func() {
		if len(dst) > first {
			dst = append(dst, ',')
		}
	}
	if r.Context != "" {
		next()
		dst = w.text(dst, string(RoleUser), r.Context)
	}
	for i := range messages {
		next()
		m := &messages[i]
		role := string(m.Role)
		if m.Role == RoleAssistant {
			role = w.model
		}
		if m.Parts == nil {
			dst = w.text(dst, role, m.Text)
		} else {
			dst = w.parts(dst, role, m.Parts)
		}
	}
	if len(r.Messages) == 0 {
		next()
		dst = w.text(dst, string(RoleUser), r.Prompt)
	}
	if r.Complaint != "" {
		if r.Rejected != "" {
			next()
			dst = w.text(dst, w.model, r.Rejected)
		}
		next()
		dst = w.text(dst, string(RoleUser), r.Complaint)
	}
	return dst
}

// The wire formats' ways to write messages. Anthropic's are those of chat completions.
var (
	chatTurns      = turnWriter{model: "assistant", text: appendMessage, parts: appendChatParts}
	responsesTurns = turnWriter{model: "assistant", text: appendMessage, parts: appendResponsesParts}
	geminiTurns    = turnWriter{model: "model", text: appendContent, parts: appendContentParts}
)

// appendMessage appends one message as role and content.
func appendMessage(dst []byte, role, content string) []byte {
	dst = append(dst, `{"role":"`...)
	dst = append(dst, role...)
	dst = append(dst, `","content":`...)
	dst = jsonbytes.AppendString(dst, content)
	return append(dst, '}')
}

// appendChatParts appends a message of chat completions and of Anthropic.
func appendChatParts(dst []byte, role string, parts []Part) []byte {
	return appendParts(dst, role, `","content":[`, `{"type":"text","text":`, parts)
}

// appendResponsesParts appends a message of responses, where the model's own words have a
// type of their own.
func appendResponsesParts(dst []byte, role string, parts []Part) []byte {
	open := `{"type":"input_text","text":`
	if role == string(RoleAssistant) {
		open = `{"type":"output_text","text":`
	}
	return appendParts(dst, role, `","content":[`, open, parts)
}

func appendContent(dst []byte, role, text string) []byte {
	return appendContentParts(dst, role, []Part{{Text: text}})
}

func appendContentParts(dst []byte, role string, parts []Part) []byte {
	return appendParts(dst, role, `","parts":[`, `{"text":`, parts)
}

// appendParts appends a message: list begins the member with the parts, and open each of
// them up to its text.
func appendParts(dst []byte, role, list, open string, parts []Part) []byte {
	dst = append(append(append(dst, `{"role":"`...), role...), list...)
	for i := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendString(append(dst, open...), parts[i].Text)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}
