package llm

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// ErrStreaming refuses an extra body that asks for a streamed reply.
var ErrStreaming = errors.New(`extra body: "stream" is not supported; remove it`)

// ExtraBodyError refuses a member of an extra body that would replace what the request itself says, or ask for a reply
// that cannot be read.
type ExtraBodyError struct {
	// Member is the name as given; those of nested objects are joined by dots.
	Member string
	// Setting is the field of [Request] to set in its place: "Model", "Prompt" or "System". Empty: there is none.
	Setting string
	reason  string
}

// Error names the member and what to do about it.
func (e *ExtraBodyError) Error() string {
	advice := "remove it"
	if e.Setting != "" {
		advice = "set Request." + e.Setting
	}
	return fmt.Sprintf("extra body: %q %s; %s", e.Member, e.reason, advice)
}

// reservedMember is a member that no wire format may be given in an extra body. All formats refuse the same: one
// extra body goes to fallbacks of other formats too, and none has a use of its own for the names of another.
type reservedMember struct {
	name     string // lower case, without underscores
	setting  string
	reason   string
	harmless func(value []byte) bool // nil: never
}

var reservedMembers = [...]reservedMember{
	{"model", "Model", "is the stage's own", nil},
	{"messages", "Prompt", "is the stage's own", nil}, // chat completions, Anthropic
	{"input", "Prompt", "is the stage's own", nil},    // OpenAI responses
	{"contents", "Prompt", "is the stage's own", nil}, // Gemini
	{"prompt", "Prompt", "is the stage's own", nil},   // OpenAI responses: a stored prompt
	// OpenAI responses. In a conversation rows would also read each other's prompts.
	{"previousresponseid", "", "puts other text into every prompt", isNull},
	{"conversation", "", "puts other text into every prompt", isNull},
	// A list of blocks is the only way to mark a system prompt for Anthropic's cache.
	{"system", "System", "is the stage's own", isList},
	{"instructions", "System", "is the stage's own", nil},
	{"systeminstruction", "System", "is the stage's own", nil},
	{"streamoptions", "", "is for streaming, which is not supported", isNull},
	{"background", "", "has no reply to wait for", isOff}, // OpenAI responses
	{"deferred", "", "has no reply to wait for", isOff},   // xAI chat completions
	{"n", "", "asks for replies that would be paid for and dropped", isOne},
	{"candidatecount", "", "asks for replies that would be paid for and dropped", isOne},
}

func isNull(value []byte) bool { return value[0] == 'n' }
func isList(value []byte) bool { return value[0] == '[' }
func isOff(value []byte) bool  { return value[0] == 'n' || value[0] == 'f' }
func isOne(value []byte) bool  { return value[0] == 'n' || countOf(value).n == 1 }

// ValidateExtraBody reports why raw cannot be merged into a request: it is no JSON object, asks for a streamed reply
// ([ErrStreaming]), or has a member that it may not set (an [*ExtraBodyError]): the model, the prompts, other text beside
// them, replies in the background, or more than one. Names count in any case and with or without underscores, as some
// servers read them. Empty is fine.
func ValidateExtraBody(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	if !jsonbytes.Valid(raw) || raw[jsonbytes.SkipSpace(raw, 0)] != '{' {
		return fmt.Errorf("extra body: not a JSON object: %.40q", excerpt.Of(raw))
	}
	for key, value := range jsonbytes.Members(raw) {
		if sameName(key, "stream") && !isOff(value) {
			return ErrStreaming
		}
		if e := reserved(key, value); e != nil {
			return e
		}
		if !sameName(key, "generationconfig") || !isObject(value) { // Gemini
			continue
		}
		for name, value := range jsonbytes.Members(value) {
			if e := reserved(name, value); e != nil && sameName(name, "candidatecount") {
				e.Member = string(key) + "." + e.Member
				return e
			}
		}
	}
	return nil
}

func reserved(key, value []byte) *ExtraBodyError {
	for i := range reservedMembers {
		m := &reservedMembers[i]
		if sameName(key, m.name) && (m.harmless == nil || !m.harmless(value)) {
			return &ExtraBodyError{Member: string(key), Setting: m.setting, reason: m.reason}
		}
	}
	return nil
}

// sameName reports whether key is name, which is in lower case, but for underscores and the case of ASCII letters.
func sameName(key []byte, name string) bool {
	n := 0
	for _, c := range key {
		if c == '_' {
			continue
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if n == len(name) || name[n] != c {
			return false
		}
		n++
	}
	return n == len(name)
}
