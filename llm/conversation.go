package llm

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Role is who speaks in a message.
type Role string

const (
	// RoleSystem is for instructions. Wire formats that have one place for these,
	// [Messages], [GenerateContent] and [Converse], take system messages at the start of
	// the conversation alone.
	RoleSystem Role = "system"
	// RoleUser is for the caller.
	RoleUser Role = "user"
	// RoleAssistant is for the model.
	RoleAssistant Role = "assistant"
	// RoleTool is for what a tool has answered to a call of the model, in a conversation
	// that a row brings along. See [Message.CallID].
	RoleTool Role = "tool"
)

// ParseRole returns the role of a name. developer is another name for system.
func ParseRole(name string) (Role, error) {
	switch role := Role(name); role {
	case RoleSystem, RoleUser, RoleAssistant:
		return role, nil
	case "developer":
		return RoleSystem, nil
	case RoleTool: // what a file of messages can't have
	}
	return "", fmt.Errorf("the role %q is unknown: write system, user or assistant", name)
}

// MaxMessages bounds the messages of one row's conversation, and MaxParts the parts of each.
const (
	MaxMessages = 10_000
	MaxParts    = 100
)

// Message is one turn of a conversation, for example an example's question, or the answer
// to it.
type Message struct {
	Role Role
	// Text is the content.
	Text string
	// Parts is the content in several parts, in place of Text. It is sent as a list, even
	// if it has one element.
	Parts []Part
	// Calls are the tools that the model has called, in a message of [RoleAssistant].
	Calls []ToolCall
	// CallID is the id of the call that a message of [RoleTool] answers.
	CallID string
	// Refusal is what the model has said in place of an answer, in a message of
	// [RoleAssistant].
	Refusal string
	// Name tells participants of one role apart. Only chat completions have a place for it.
	Name string
}

// Part is one part of a message's content: a text, or media.
type Part struct {
	// Text is the part's text. It is empty where there are Media.
	Text string
	// Media is a picture, a document or a sound. It is nil in a part that is a text.
	Media *Media
}

// text returns the part as people read it.
func (p *Part) text() string {
	if p.Media != nil {
		return p.Media.String()
	}
	return p.Text
}

// MediaOf returns the media in messages, in their order.
func MediaOf(messages []Message) iter.Seq[*Media] {
	return func(yield func(*Media) bool) {
		for i := range messages {
			for j := range messages[i].Parts {
				if m := messages[i].Parts[j].Media; m != nil && !yield(m) {
					return
				}
			}
		}
	}
}

// HasSystem reports whether a conversation has a system message.
func HasSystem(messages []Message) bool {
	return slices.ContainsFunc(messages, func(m Message) bool { return m.Role == RoleSystem })
}

// text returns the message as people read it: its content, and what the model has called
// or refused.
func (m *Message) text() string {
	lines := []string{m.content()}
	if m.Refusal != "" {
		lines = append(lines, m.Refusal)
	}
	for i := range m.Calls {
		lines = append(lines, fmt.Sprintf("%s(%s)", m.Calls[i].Name, m.Calls[i].Arguments))
	}
	if lines[0] == "" && len(lines) > 1 {
		lines = lines[1:]
	}
	return strings.Join(lines, "\n")
}

// content returns the content as one text.
func (m *Message) content() string {
	if m.Parts == nil {
		return m.Text
	}
	texts := make([]string, len(m.Parts))
	for i := range m.Parts {
		texts[i] = m.Parts[i].text()
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
			return fmt.Errorf("message %d is a system message behind others, which this wire "+
				"format has no place for; move it to the start",
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
	list  string // between the role of a message and its parts
	part  func(dst []byte, r *Request, role string, p *Part) []byte

	// turn appends a message with more than a content, see [Message.isTurn]. answers
	// appends the answers of tools to one message, behind the messages before them. It is
	// nil where each is a message of its own, which turn appends.
	turn    func(w *turnWriter, dst []byte, r *Request, m *Message) []byte
	answers func(dst []byte, before, answers []Message) []byte
}

// role returns the wire format's name for who speaks in a message.
func (w *turnWriter) role(m *Message) string {
	if m.Role == RoleAssistant {
		return w.model
	}
	return string(m.Role)
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
	for i := 0; i < len(messages); i++ {
		next()
		switch m := &messages[i]; {
		case m.Role == RoleTool && w.answers != nil:
			end := i + 1
			for end < len(messages) && messages[end].Role == RoleTool {
				end++
			}
			dst = w.answers(dst, messages[:i], messages[i:end])
			i = end - 1
		case m.isTurn():
			dst = w.turn(w, dst, r, m)
		case m.Parts == nil:
			dst = w.text(dst, w.role(m), m.Text)
		default:
			dst = w.appendParts(dst, r, w.role(m), m.Parts)
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

// appendParts appends a message whose content is a list.
func (w *turnWriter) appendParts(dst []byte, r *Request, role string, parts []Part) []byte {
	dst = append(append(append(dst, `{"role":"`...), role...), w.list...)
	for i := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(w.part(dst, r, role, &parts[i]), '}')
	}
	return append(dst, "]}"...)
}

const contentList = `","content":[`

// The wire formats' ways to write messages. What a part of text is differs in the one of
// responses, and media, calls and answers of tools differ in each.
var (
	chatTurns = turnWriter{
		model: "assistant", text: appendMessage, list: contentList, part: appendChatPart,
		turn: appendChatTurn,
	}
	responsesTurns = turnWriter{
		model: "assistant", text: appendMessage, list: contentList, part: appendResponsesPart,
		turn: appendResponsesTurn,
	}
	anthropicTurns = turnWriter{
		model: "assistant", text: appendMessage, list: contentList, part: appendAnthropicPart,
		turn: appendAnthropicTurn, answers: appendAnthropicAnswers,
	}
	geminiTurns = turnWriter{
		model: "model", text: appendContent, list: `","parts":[`, part: appendGeminiPart,
		turn: appendGeminiTurn, answers: appendGeminiAnswers,
	}
)

// appendMessage appends one message as role and content.
func appendMessage(dst []byte, role, content string) []byte {
	dst = append(dst, `{"role":"`...)
	dst = append(dst, role...)
	dst = append(dst, `","content":`...)
	dst = jsonbytes.AppendString(dst, content)
	return append(dst, '}')
}

// appendContent appends one message of Gemini.
func appendContent(dst []byte, role, text string) []byte {
	dst = append(append(append(dst, `{"role":"`...), role...), `","parts":[{"text":`...)
	return append(jsonbytes.AppendString(dst, text), "}]}"...)
}

// appendChatPart appends a part of a message of chat completions, but for its brace.
func appendChatPart(dst []byte, r *Request, _ string, p *Part) []byte {
	m := p.Media
	switch {
	case m == nil:
		return appendMember(append(dst, `{"type":"text"`...), "text", p.Text)
	case m.Kind == KindAudio:
		dst = r.placed.appendContent(append(dst, `{"type":"input_audio","input_audio":{"data":`...),
			m.Content, "")
		dst = appendMember(dst, "format", audioFormats[m.Type])
	case m.Kind == KindFile:
		dst = append(jsonbytes.AppendString(append(dst, `{"type":"file","file":{"filename":`...),
			m.fileName()), `,"file_data":`...)
		dst = r.placed.appendSource(dst, m)
	default:
		dst = r.placed.appendSource(append(dst, `{"type":"image_url","image_url":{"url":`...), m)
		dst = appendDetail(dst, m)
	}
	return append(dst, '}')
}

// audioFormats are OpenAI's names of the types of sounds that it takes.
var audioFormats = map[string]string{TypeWAV: "wav", TypeMP3: "mp3"}

// appendResponsesPart appends a part of a message of responses, but for its brace. There the
// model's own words have a type of their own.
func appendResponsesPart(dst []byte, r *Request, role string, p *Part) []byte {
	m := p.Media
	switch {
	case m == nil && role == string(RoleAssistant):
		return appendMember(append(dst, `{"type":"output_text"`...), "text", p.Text)
	case m == nil:
		return appendMember(append(dst, `{"type":"input_text"`...), "text", p.Text)
	case m.Kind == KindFile && m.URL() != "": // its name is in the URL
		return appendMember(append(dst, `{"type":"input_file"`...), "file_url", m.URL())
	case m.Kind == KindFile:
		dst = appendMember(append(dst, `{"type":"input_file"`...), "filename", m.fileName())
		return r.placed.appendSource(append(dst, `,"file_data":`...), m)
	}
	dst = r.placed.appendSource(append(dst, `{"type":"input_image","image_url":`...), m)
	return appendMember(dst, "detail", cmp.Or(m.Detail, "auto")) // which must be there
}

// appendAnthropicPart appends a block of a message of Anthropic, but for its brace.
func appendAnthropicPart(dst []byte, r *Request, _ string, p *Part) []byte {
	m := p.Media
	if m == nil {
		return appendMember(append(dst, `{"type":"text"`...), "text", p.Text)
	}
	kind := "image"
	if m.Kind == KindFile {
		kind = "document"
	}
	dst = append(append(append(dst, `{"type":"`...), kind...), `","source":{"type":"`...)
	if url := m.URL(); url != "" {
		dst = appendMember(append(dst, `url"`...), "url", url)
	} else {
		dst = appendMember(append(dst, `base64"`...), "media_type", m.Type)
		dst = r.placed.appendContent(append(dst, `,"data":`...), m.Content, "")
	}
	dst = append(dst, '}')
	if m.Kind == KindFile && m.Name != "" {
		dst = appendMember(dst, "title", m.Name)
	}
	return dst
}

// appendGeminiPart appends a part of a message of Gemini, but for its brace.
func appendGeminiPart(dst []byte, r *Request, _ string, p *Part) []byte {
	m := p.Media
	switch {
	case m == nil:
		return jsonbytes.AppendString(append(dst, `{"text":`...), p.Text)
	case m.URL() == "":
		mediaType := m.Type
		if mediaType == TypeMP3 {
			mediaType = "audio/mp3" // its own name
		}
		dst = jsonbytes.AppendString(append(dst, `{"inlineData":{"mimeType":`...), mediaType)
		dst = r.placed.appendContent(append(dst, `,"data":`...), m.Content, "")
	default: // the type behind a URL is not known, but for documents, of which there is one
		dst = append(dst, `{"fileData":{`...)
		if m.Kind == KindFile {
			dst = append(dst, `"mimeType":"`+TypePDF+`",`...)
		}
		dst = jsonbytes.AppendString(append(dst, `"fileUri":`...), m.URL())
	}
	return append(dst, '}')
}

// appendMember appends a comma and a member of text.
func appendMember(dst []byte, name, text string) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return jsonbytes.AppendString(dst, text)
}

// appendSource appends the address of media, or their content as a data: URL.
func (p *placements) appendSource(dst []byte, m *Media) []byte {
	if url := m.URL(); url != "" {
		return jsonbytes.AppendString(dst, url)
	}
	return p.appendDataURL(dst, m.Content)
}

// appendDetail appends the member detail, if there is one to send.
func appendDetail(dst []byte, m *Media) []byte {
	if m.Detail == "" {
		return dst
	}
	return appendMember(dst, "detail", m.Detail)
}

// fileName is the name of a file for the formats that demand one.
func (m *Media) fileName() string { return cmp.Or(m.Name, "file.pdf") }
