package llm

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// converseWriter appends the messages of Converse, which alternate between the user and
// the assistant: what one of them says in several messages of a conversation becomes the
// blocks of a single message.
type converseWriter struct {
	dst  []byte
	role string // of the message that is open; empty while none is
}

// appendConversation appends the messages after the system prompt: the context, the
// conversation or the prompt, and a rejected answer with the complaint about it.
func appendConversation(dst []byte, r *Request, messages []Message) []byte {
	w := converseWriter{dst: dst}
	if r.Context != "" {
		w.text(RoleUser, r.Context)
	}
	for i := range messages {
		w.message(r, &messages[i])
	}
	if len(r.Messages) == 0 {
		w.text(RoleUser, r.Prompt)
	}
	if r.Complaint != "" {
		if r.Rejected != "" {
			w.text(RoleAssistant, r.Rejected)
		}
		w.text(RoleUser, r.Complaint)
	}
	w.close()
	return w.dst
}

// block begins the next block of a role's message. If the role is not the one of the
// message before, another message begins.
func (w *converseWriter) block(role Role) {
	if w.role == string(role) {
		w.dst = append(w.dst, ',')
		return
	}
	if w.close(); w.dst[len(w.dst)-1] == '}' { // and not the bracket that opens the list
		w.dst = append(w.dst, ',')
	}
	w.dst, w.role = append(w.dst, `{"content":[`...), string(role)
}

// close ends the message that is open.
func (w *converseWriter) close() {
	if w.role != "" {
		w.dst = append(append(append(w.dst, `],"role":"`...), w.role...), `"}`...)
		w.role = ""
	}
}

func (w *converseWriter) text(role Role, text string) {
	w.block(role)
	w.dst = append(jsonbytes.AppendString(append(w.dst, `{"text":`...), text), '}')
}

// message appends the blocks of a message. The answer of a tool is a block of the user's.
func (w *converseWriter) message(r *Request, m *Message) {
	if m.Role == RoleTool {
		w.block(RoleUser)
		w.dst = jsonbytes.AppendString(append(w.dst, `{"toolResult":{"content":[{"text":`...),
			m.content())
		w.dst = jsonbytes.AppendString(append(w.dst, `}],"toolUseId":`...), m.CallID)
		w.dst = append(w.dst, "}}"...)
		return
	}
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Media != nil {
			w.block(m.Role)
			w.media(r, p.Media)
		} else {
			w.text(m.Role, p.Text)
		}
	}
	if m.Parts == nil && (m.Text != "" || !m.isTurn()) {
		w.text(m.Role, m.Text)
	}
	if m.Refusal != "" {
		w.text(m.Role, m.Refusal)
	}
	for i := range m.Calls {
		c := &m.Calls[i]
		w.block(m.Role)
		w.dst = append(append(w.dst, `{"toolUse":{"input":`...), c.Arguments...)
		w.dst = jsonbytes.AppendString(append(w.dst, `,"name":`...), c.Name)
		w.dst = jsonbytes.AppendString(append(w.dst, `,"toolUseId":`...), c.ID)
		w.dst = append(w.dst, "}}"...)
	}
}

// bedrockFormats are Bedrock's names of the types that it takes.
var bedrockFormats = map[string]string{
	TypePNG: "png", TypeJPEG: "jpeg", TypeGIF: "gif", TypeWebP: "webp", TypePDF: "pdf",
	TypeWAV: "wav", TypeMP3: "mp3", TypeOgg: "ogg", TypeFLAC: "flac", TypeM4A: "m4a",
}

// media appends a block with a picture, a document or a sound.
func (w *converseWriter) media(r *Request, m *Media) {
	kind := map[MediaKind]string{
		KindImage: "image", KindFile: "document",
		KindAudio: "audio",
	}[m.Kind]
	w.dst = append(append(append(w.dst, `{"`...), kind...), `":{"format":`...)
	w.dst = jsonbytes.AppendString(w.dst, bedrockFormats[m.Type])
	if m.Kind == KindFile {
		w.dst = jsonbytes.AppendString(append(w.dst, `,"name":`...), bedrockName(r.Messages, m))
	}
	w.dst = r.placed.appendContent(append(w.dst, `,"source":{"bytes":`...), m.Content, "")
	w.dst = append(w.dst, "}}}"...)
}

// bedrockNameRunes bounds the name of a document.
const bedrockNameRunes = 200

// bedrockName returns the name of a document as Bedrock takes it: without the extension,
// of letters, digits, single spaces, hyphens, parentheses and square brackets, and unlike
// the name of any other document of the request. For example, a second "2026_05.pdf" is
// "2026-05 (2)".
func bedrockName(messages []Message, document *Media) string {
	used := make(map[string]bool)
	for m := range MediaOf(messages) {
		if m.Kind != KindFile {
			continue
		}
		own := cleanName(m.Name)
		name := own
		for n := 2; used[strings.ToLower(name)]; n++ {
			name = fmt.Sprintf("%s (%d)", own, n)
		}
		if m == document {
			return name
		}
		used[strings.ToLower(name)] = true
	}
	return cleanName(document.Name) // of a request without messages there is none
}

// cleanName replaces what Bedrock refuses in a name.
func cleanName(name string) string {
	if n := len(name) - len(".pdf"); n > 0 && strings.EqualFold(name[n:], ".pdf") {
		name = name[:n]
	}
	name = strings.Map(func(c rune) rune {
		switch {
		case isAlphanumeric(c), strings.ContainsRune("-()[]", c):
			return c
		case unicode.IsSpace(c):
			return ' '
		}
		return '-'
	}, name)
	name = strings.Join(strings.Fields(name), " ")
	if len(name) > bedrockNameRunes-len(" (100)") {
		name = strings.TrimSpace(name[:bedrockNameRunes-len(" (100)")])
	}
	if strings.Trim(name, "- ") == "" {
		return "document"
	}
	return name
}
